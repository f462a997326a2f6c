"""Commands about jobs: start, watch, stop, resume and check them, on this machine and on a cluster."""

__all__ = []
