"""A job's plan before anything starts: processes, ports, slices, shards and bytes, as a plain value."""

from __future__ import annotations

from typing import Any

from bireme.job.preflight import check_program, updates_of
from bireme.ps.frames import HEAD_NBYTES, RECORD_NBYTES
from bireme.ps.plan import Layout
from bireme.ps.setup import is_apart
from bireme.ps.tree import rows_of, share_out
from bireme.spec.job import Job


def describe(job: Job) -> dict[str, Any]:
    """Everything that follows from a job without running it; loads the config, reads no sample."""
    program = check_program(job)
    updates = updates_of(program, job.updates, job.wire)
    layout = Layout([p for p in program.parameters if not p.is_sparse])
    slices = layout.slices(job.pservers * job.ports_num)
    shares = share_out(job.shards, job.trainers)
    lanes = job.ports_num + job.ports_num_for_sparse
    apart = is_apart(updates, job.wire)
    rows = sum(len(rows_of(share, job.shards, is_apart=apart)) for share in shares)
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
        "pservers": [
            {
                "pserver": i,
                "node": i,
                "ports": [job.port + i * lanes + k for k in range(lanes)] if job.port else "free ones",
                "lanes": [
                    {
                        "lane": k,
                        "bytes": 4 * len(part),
                        "holds": [
                            {
                                "parameter": p.parameter.name,
                                "from": p.offset,
                                "to": p.offset + p.end - p.begin,
                            }
                            for p in layout.pieces(part)
                        ],
                    }
                    for k, part in enumerate(slices[i * job.ports_num : (i + 1) * job.ports_num])
                ],
            }
            for i in range(job.pservers)
        ],
        "trainers": [
            {
                "trainer": t,
                "node": t,
                "shards": list(share.shards),
                "rows": len(rows_of(share, job.shards, is_apart=apart)),
            }
            for t, share in enumerate(shares)
        ],
        "processes": job.nodes + job.pservers + job.trainers,
        # Dense parameters; what sparse ones add depends on the data.
        "bytes_per_round": 4 * layout.size * (rows + job.trainers) + heads,
        "output": job.output,
    }
