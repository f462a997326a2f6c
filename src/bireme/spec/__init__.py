"""Checked models of the user's files."""

__all__ = ["cluster", "cluster_load", "job", "kubernetes", "load", "mistakes", "model", "terms"]
