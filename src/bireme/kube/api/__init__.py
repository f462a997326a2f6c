"""Kubernetes' API server in plain values: the client, names and labels, permissions, cluster facts."""
