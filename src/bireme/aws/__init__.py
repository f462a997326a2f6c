"""Clusters on AWS: one cluster.yaml becomes three CloudFormation stacks, and nothing again.

Decisions (what to do next, given what AWS says) are functions without I/O in `decide`, `layout`, `causes`, `prices`
and `policy`; `client` alone imports boto3. Others use `plan`, `up`, `down`, `status`, `access` and `init`.
Knows nothing of training: Kubernetes is a value that is handed in.
"""

__all__ = ["access", "client", "init", "layout", "objects", "plan", "policy", "preflight", "prices", "status", "up"]
