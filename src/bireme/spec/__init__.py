"""Checked models of what the user wrote."""

__all__ = ["cluster", "cluster_load", "job", "kubernetes", "load", "mistakes", "model"]
