"""Preparing training data: splitting and checking."""

__all__ = ["check", "layout", "scan", "split", "staging"]
