"""One job: its nodes, its coordinator, its output, the checks before it starts, and models in use."""

__all__ = ["inference", "planning", "preflight", "status"]
