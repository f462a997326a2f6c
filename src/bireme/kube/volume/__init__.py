"""A job's volume: a short-lived pod on it, files to and from it, splitting data there."""

__all__ = ["helper_pod", "pod_end", "splitting", "transfer"]
