"""`bireme volume`: the pod's end of `data push`, `fetch` and `logs`. Not for people."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import click

from bireme.cli.output import error_as_json, note
from bireme.core.errors import BiremeError


@click.command(hidden=True)
@click.argument("verb", type=click.Choice(["wait", "have", "put", "get", "list", "logs", "probe"]))
@click.argument("place")
def volume(verb: str, place: str) -> None:
    """List, write and read files on a volume, through standard input and output."""
    try:
        _do(verb, place)
    except BiremeError as e:
        note(error_as_json(e))
        raise SystemExit(e.exit_code) from e


def _do(verb: str, place: str) -> None:
    from bireme.kube.volume import pod_end

    root, source, sink = Path(place), sys.stdin.buffer, sys.stdout.buffer
    if verb == "wait":
        # The first process of a container is not ended by signals that it does not ask for.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        pod_end.stay(float(place), pod_end.has_company)
    elif verb == "have":
        click.echo(json.dumps(pod_end.have(root, json.load(source))))
    elif verb == "put":
        click.echo(json.dumps(pod_end.put(root, source)))
    elif verb == "get":
        pod_end.get(root, json.load(source), sink)
    elif verb == "list":
        click.echo(json.dumps(pod_end.list_files(root)))
    elif verb == "probe":
        from bireme.job.output.volume_probe import probe

        result = probe(root)
        click.echo(json.dumps({"words": result.words, "lacks": result.lacks}))
    else:
        from bireme.job.output.logs import write_logs

        write_logs(root, json.load(source), sink)
