"""One exchange: frames, plan, rounds, kernels, client, server."""

__all__ = ["plan", "setup", "tree"]
