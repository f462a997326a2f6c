"""`bireme status --watch`: look on until a job is over; leaving does not end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bireme.cli.running import Interrupts, show
from bireme.local import registry
from bireme.view.readers import choose_view

if TYPE_CHECKING:
    from bireme.kube.api.client import Cluster

POLL_S = 0.5


def watch_here(
    record: registry.RunRecord, status_of: Callable[[registry.RunRecord], dict[str, Any]]
) -> registry.RunRecord:
    """Show the news of a run on this machine until it ends or the user leaves; the run as it is then."""
    view = choose_view(is_silent=False)
    with Interrupts() as interrupts, view:
        while record.state == "running" and not interrupts.count:
            news = status_of(record)
            if news.get("phase") != "training" or "trainers" in news:  # else its coordinator has never answered
                view = show(view, news)
            time.sleep(POLL_S)
            record = registry.find_run(record.id)
    return record


def watch_there(cluster: Cluster, name: str) -> None:
    """Show the news of a job on a cluster until it ends or the user leaves."""
    from bireme.cli.following import follow

    follow(cluster, name, choose_view(is_silent=False))
