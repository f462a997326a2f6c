"""What keeps a job from running, here or on a cluster: a table of situations, each with cause and advice."""

__all__ = ["evidence", "explain", "gather"]
