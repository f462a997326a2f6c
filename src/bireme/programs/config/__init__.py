"""The `trainer_config` front end: runs a user's config file and gives a program."""

__all__ = ["graph"]
