"""One node: its pserver and trainer processes, how they are started, found, restarted and reported on."""
