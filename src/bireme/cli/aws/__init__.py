"""`bireme cluster`: commands that make, show, scale and take down a cluster on AWS."""
