"""The command line: one file per command group, thin: parse, call, print."""

__all__ = ["main"]
