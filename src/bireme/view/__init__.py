"""Words and pictures for people, read-only over status and metrics."""
