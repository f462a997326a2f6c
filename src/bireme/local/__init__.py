"""Running a job as processes on this machine."""

__all__ = ["drill", "faults", "registry", "runner"]
