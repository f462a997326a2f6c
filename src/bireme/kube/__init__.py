"""Jobs on Kubernetes: from a job file to objects, from objects to pods, and what is told about them on the way."""
