"""What simulated processes run on: virtual time, connections, clocks that differ, and a disk that forgets."""

__all__ = ["clocks", "network"]
