"""Container images without a container engine: built from a root file system and wheels, pushed, loaded."""
