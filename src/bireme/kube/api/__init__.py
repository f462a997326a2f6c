"""Kubernetes' API server in plain values: the client, names and labels, commands in pods, cluster facts."""

__all__ = ["client", "cluster_facts", "kubeconfig", "naming", "platform"]
