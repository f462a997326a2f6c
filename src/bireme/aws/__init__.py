"""Clusters on AWS: one cluster.yaml becomes three CloudFormation stacks, and back to nothing.

Decisions (the next step, from the state that AWS reports) are functions without I/O in `decide`, `layout`, `causes`,
`prices` and `policy`; `client` alone imports boto3. Others use `plan`, `up`, `down`, `status`, `access` and `init`.
Imports nothing of training or Kubernetes: `cli.aws` passes in what it needs of the cluster.
"""

__all__ = ["access", "client", "init", "layout", "objects", "plan", "policy", "preflight", "prices", "status", "up"]
