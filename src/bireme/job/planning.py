"""A job's plan, made before anything starts: processes, ports, slices, shards and bytes, as a plain value."""

from __future__ import annotations

import math
from typing import Any

from bireme.job.preflight import check_program, updates_of
from bireme.ps.plan import Layout, Slice
from bireme.ps.setup import is_apart
from bireme.ps.tree import rows_of, share_out
from bireme.ps.wire.frames import HEAD_NBYTES, RECORD_NBYTES
from bireme.spec.job import Job
from bireme.spec.model import Wire


def describe(job: Job) -> dict[str, Any]:
    """Compute a job's plan; loads the config, reads no sample."""
    program = check_program(job)
    updates = updates_of(program, job.updates, job.wire)
    layout = Layout([p for p in program.parameters if not p.is_sparse])
    slices = layout.slices(job.pservers * job.ports_num)
    shares = share_out(job.shards, job.trainers)
    rows_each = [len(rows_of(share, job.shards, is_apart=is_apart(updates, job.wire))) for share in shares]
    rows = sum(rows_each)
    heads = len(slices) * (2 * HEAD_NBYTES * rows + HEAD_NBYTES * job.trainers + RECORD_NBYTES * job.shards)
    return {
        "job": job.name,
        "program": program.name,
        "parameters": [
            {"name": p.name, "shape": list(p.shape), "values": p.size, "is_sparse": p.is_sparse}
            for p in program.parameters
        ],
        "mode": updates.mode,
        "batch_size": program.batch_size,
        "passes": job.passes,
        "pservers": [_pserver(job, i, layout) for i in range(job.pservers)],
        "trainers": [
            {"trainer": t, "node": t, "shards": list(share.shards), "rows": rows_each[t]}
            for t, share in enumerate(shares)
        ],
        "processes": job.nodes + job.pservers + job.trainers,
        # A round is an exchange; what sparse parameters add to it depends on the data.
        "bytes_per_round": rows * _push_nbytes(layout, job.wire) + 4 * layout.size * job.trainers + heads,
        "output": job.output,
    }


def _pserver(job: Job, rank: int, layout: Layout) -> dict[str, Any]:
    lanes = job.ports_num + job.ports_num_for_sparse
    slices = layout.slices(job.pservers * job.ports_num)[rank * job.ports_num : (rank + 1) * job.ports_num]
    return {
        "pserver": rank,
        "node": rank,
        "ports": [job.port + rank * lanes + k for k in range(lanes)] if job.port else "free ones",
        "lanes": [{"lane": k, "bytes": 4 * len(part), "holds": _holds(layout, part)} for k, part in enumerate(slices)],
    }


def _holds(layout: Layout, part: Slice) -> list[dict[str, Any]]:
    return [
        {"parameter": p.parameter.name, "from": p.offset, "to": p.offset + p.end - p.begin} for p in layout.pieces(part)
    ]


def _push_nbytes(layout: Layout, wire: Wire) -> int:
    """How long one gradient is on the wire."""
    if wire.gradients == "top_k":  # a position and a value each
        return 8 * math.ceil(wire.top_k * sum(p.size for p in layout.parameters))
    return (4 if wire.is_exact else 2) * layout.size
