"""How values change: update kernels, optimizer state, learning-rate schedules."""
