"""Text and pictures of status and metrics for people; read-only."""

__all__ = ["plain", "readers"]
