"""From a job to Kubernetes objects, and their submission."""

__all__ = ["certificates", "indexed_jobs", "objects", "patching", "placement", "submission", "submit"]
