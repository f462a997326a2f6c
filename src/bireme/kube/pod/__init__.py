"""What runs inside a pod of a job: its environment, its node, probes, and its status on the Job."""

__all__ = ["entry"]
