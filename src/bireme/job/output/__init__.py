"""The output directory: models, snapshots, metrics and ledger, who may write there, and their check."""

__all__ = [
    "data_hash",
    "inputs",
    "journal",
    "kept",
    "logs",
    "manifest",
    "model",
    "ownership",
    "snapshots",
    "verify",
    "volume_probe",
]
