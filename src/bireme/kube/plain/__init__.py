"""Plain Jobs such as those of the original tutorial: pods that find and rank each other."""

__all__ = ["peers", "ranks", "tutorial"]
