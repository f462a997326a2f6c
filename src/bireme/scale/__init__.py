"""How long a round takes at scales that no machine here can hold: a model in virtual time with measured costs."""

__all__ = ["jobs", "model"]
