"""The coordinator: who is in the job, in which view, when snapshots are committed and passes end."""

__all__ = ["coordinator", "cuts", "effects", "messages", "service", "status"]
