"""Taking a cluster down: order, strays that block it, and the audit of what is left."""

__all__ = ["audit", "down", "sweep"]
