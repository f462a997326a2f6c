"""Sparse parameters: rows that are found by id, and the lanes that keep them."""

__all__ = ["lane", "row_sums", "table"]
