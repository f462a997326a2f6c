"""A pserver's part of a snapshot: copied aside at a cut, written to a file, put together again for any layout."""

__all__ = ["reassembly", "snapshot_files", "writer"]
