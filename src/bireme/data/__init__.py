"""Preparing training data: splitting, checking, and the demo's reviews."""

__all__ = ["check", "draws", "layout", "scan", "split", "staging"]
