"""A job's protocol in virtual time: random faults strike its processes, and each event checks its invariants."""
