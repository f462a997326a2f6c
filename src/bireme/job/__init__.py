"""One job: entry, discovery, supervision, coordinator, output tree."""

__all__ = ["inference", "planning", "preflight", "shard_files", "status"]
