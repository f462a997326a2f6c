"""Container images without a container engine: built from a root file system and wheels, pushed, loaded."""

__all__ = ["archive", "build", "credentials", "layers", "registry"]
