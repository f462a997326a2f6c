"""The job's processes in virtual time: the product's own machines, with events in place of threads and sockets."""

__all__ = ["coordination", "lanes", "pserver", "trainer", "values"]
