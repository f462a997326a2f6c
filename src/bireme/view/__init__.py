"""Words and pictures for people, read-only over status and metrics."""

__all__ = ["plain", "plan", "readers", "terminal"]
