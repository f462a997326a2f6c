"""The demo job: made-up reviews from a seeded grammar, and the quick-start program."""

__all__ = ["prepare"]
