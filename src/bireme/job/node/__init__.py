"""One node: its pserver and trainer processes, how they are started, found, restarted and reported on."""

__all__ = [
    "discovery",
    "entry",
    "failure_reports",
    "headway",
    "incarnations",
    "log_budget",
    "orders",
    "pserver",
    "supervisor",
    "trainer",
    "trainer_options",
]
