"""Running a job as processes on this machine."""

__all__ = ["cost", "drilling", "registry", "runner"]
