"""One trainer: the loop, seekable readers, the ledger."""
