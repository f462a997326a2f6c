"""A job's plan in words."""

from __future__ import annotations

from typing import Any

from bireme.view.plain import count


def render(plan: dict[str, Any]) -> str:
    values = sum(p["values"] for p in plan["parameters"] if not p["is_sparse"])
    tables = [p for p in plan["parameters"] if p["is_sparse"]]
    dense = len(plan["parameters"]) - len(tables)
    lines = [
        f"{plan['job']}: {plan['program']}, {count(values, 'value')} in {count(dense, 'dense parameter')}, "
        f"{count(plan['passes'], 'pass', 'passes')}, batch {plan['batch_size']} per shard",
        f"mode {plan['mode']}, {count(plan['processes'], 'process', 'processes')}, "
        f"{plan['bytes_per_round']:,} bytes per round, output in {plan['output']}",
    ]
    for p in tables:
        lines.append(
            f"{p['name']}: {count(p['shape'][0], 'row')} of {p['shape'][1]}, on the sparse lanes of all pservers"
        )
    for p in plan["pservers"]:
        ports = p["ports"] if isinstance(p["ports"], str) else f"{p['ports'][0]}–{p['ports'][-1]}"
        lines.append(f"pserver {p['pserver']}, ports {ports}")
        for lane in p["lanes"]:
            held = ", ".join(f"{h['parameter']}[{h['from']}:{h['to']}]" for h in lane["holds"]) or "nothing"
            lines.append(f"  lane {lane['lane']}: {held} ({lane['bytes']:,} bytes)")
    for t in plan["trainers"]:
        shards = ", ".join(map(str, t["shards"]))
        lines.append(f"trainer {t['trainer']} reads shard {shards}")
    return "\n".join(lines)
