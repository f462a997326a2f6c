"""Kubernetes' API server in plain values: the client, names and labels, permissions, cluster facts."""

__all__ = ["client", "cluster_facts", "naming", "permissions", "platform"]
