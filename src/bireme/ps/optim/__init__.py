"""How values change: update kernels, optimizer state, learning-rate schedules."""

__all__ = ["kernels", "methods", "optimizers", "schedules"]
