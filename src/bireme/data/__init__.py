"""Training data: split into shards, checked, and compared between shards."""

__all__ = ["check", "layout", "scan", "split", "staging"]
