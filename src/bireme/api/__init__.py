"""Jobs, runs and models from Python: what the command line does, with a backend for each place where jobs run."""

__all__ = ["backends", "drills", "foreground", "images", "kube", "local", "models", "resuming", "where"]
