"""The output directory: models, snapshots, metrics and ledger, who may write there, and their check."""
