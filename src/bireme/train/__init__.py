"""One trainer: the loop, seekable readers, the ledger."""

__all__ = ["local", "loop", "reader", "worker"]
