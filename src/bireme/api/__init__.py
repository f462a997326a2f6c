"""Jobs, runs and models from Python: what the command line does, with a backend for each place where jobs run."""

__all__ = ["kube", "live", "progress", "where"]
