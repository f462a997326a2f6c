"""Preparing training data: splitting, checking, and the demo's reviews."""
