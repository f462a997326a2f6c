"""bireme: training with parameter servers that ends with the same bits, whatever happens on the way."""

__version__ = "0.1.0"
