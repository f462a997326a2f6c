"""Jobs, runs and models from Python: what the command line does, without its words."""

__all__ = ["live", "progress"]
