"""A lane at work: which pushes count, when a round closes, and the pserver that holds the lanes."""

__all__ = ["authority", "lane", "memory", "progress", "rounds", "server", "slow_trainers", "stream"]
