"""Jobs that are on a cluster: submit, list, stop, resume and delete them, read their logs, fetch their files."""

__all__ = ["fetching", "lifecycle", "listing", "logs", "submitting", "volumes"]
