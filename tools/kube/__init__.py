"""The test cluster: a real Kubernetes on one bare machine, in namespaces, for the end-to-end tests.

`./dev kube up` starts a control plane and three nodes; README.md beside this file describes how it is made.
Nothing here is part of the product: bireme itself runs on any cluster.
"""
