"""The trainer's side of the exchange: push gradients to every lane, pull fresh parameters back."""

__all__ = ["carriers", "coder", "memory", "push_pull", "push_pull_rows", "slow_pservers"]
