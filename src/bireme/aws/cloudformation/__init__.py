"""Stacks: what to do with one, given its state; events and their causes; progress."""

__all__ = ["causes", "decide", "progress", "stacks"]
