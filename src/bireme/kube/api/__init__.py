"""Kubernetes' API server in plain values: the client, names and labels, fields, commands in pods, cluster facts."""

__all__ = ["client", "cluster_facts", "fields", "kubeconfig", "naming", "platform"]
