"""Jobs that are on a cluster: list, stop, resume, delete, merge their logs."""

__all__ = ["lifecycle", "listing", "log_merge"]
