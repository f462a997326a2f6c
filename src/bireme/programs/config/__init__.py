"""The `trainer_config` front end: runs a user's config file and gives a program."""

from bireme.programs.config.load import load_config

__all__ = ["graph", "load_config"]
