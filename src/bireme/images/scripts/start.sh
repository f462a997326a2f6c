#!/bin/bash
# What the training job of the original's Kubernetes tutorial runs; its environment says the rest.
exec /opt/bireme/bin/bireme node
