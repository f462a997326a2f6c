"""From a job to Kubernetes objects, and their submission."""
