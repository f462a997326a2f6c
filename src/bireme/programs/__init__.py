"""What is trained: front ends that turn a user's file into a program."""

__all__ = ["bow", "loading", "lookups", "program"]
