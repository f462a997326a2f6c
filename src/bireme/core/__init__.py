"""Errors, log, files, text of messages, named fault points: no opinions about training."""

__all__ = ["certificates", "draws", "errors", "faults", "files", "forking", "log", "processes", "text"]
