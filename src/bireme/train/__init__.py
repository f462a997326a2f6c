"""One trainer: the loop of each mode, its gradients, the ledger."""

__all__ = ["local", "loop", "worker"]
