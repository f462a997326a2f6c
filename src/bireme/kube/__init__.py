"""Jobs on Kubernetes: from a job file to objects, from objects to pods, and their status on the way."""
