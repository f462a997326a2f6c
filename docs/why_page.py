"""The page "Why is my job not running", written off the table of situations: python docs/generate.py calls it.

Every example is what `explain` says today about facts that were recorded on a real cluster (or from a real run on one
machine), so a sentence on the page cannot differ from what the command prints.
"""

from __future__ import annotations

import json
from pathlib import Path

from bireme.diagnose.explain import TABLE, explain
from bireme.diagnose.facts import Cause, Situation, facts_from

RECORDED = Path(__file__).resolve().parents[1] / "tests/unit/diagnose/recorded"
CHAPTERS = {
    "creating": "Pods are refused",
    "scheduling": "No machine takes a pod",
    "volumes": "The volume is not there",
    "images": "The image cannot be had, or does not run",
    "starting": "A container does not start",
    "nodes": "A machine or the cluster ended a pod",
    "dying": "Pods end",
    "training": "The job says itself what is wrong",
    "peers": "Processes do not find, or wait for, each other",
    "resting": "The job waits, or nothing is wrong",
}
HEAD = """\
# Why is my job not running

`bireme why JOB` says it in two sentences: what the cause is, and what to do. If there are more causes, they stand
below; what should be mended first comes first. It only reads, and works for jobs on this machine as well.

```
bireme why quick-start --namespace training
bireme why quick-start --json
```

On a cluster it looks at the job's Jobs, pods and events, and where something is wrong also at machines, volume
claims, the certificate's dates and the ends of the pods' logs. What you may not see is left out, with a note that names
the permission. The list of machines belongs to the whole cluster: where you may not see it, sentences have fewer
figures.

This page is written off the table that the command uses. The examples were said about real objects, recorded on a
cluster.
"""


def page() -> str:
    """The whole page."""
    examples = _examples()
    parts = [HEAD]
    for module, title in CHAPTERS.items():
        rows = [row for row in TABLE if row.find.__module__.endswith(f".{module}")]
        parts += [f"## {title}\n", *(_section(row, examples[row.name]) for row in rows)]
    return "\n".join(parts)


def _section(row: Situation, example: Cause) -> str:
    told = f"> {_shown(example.cause)}<br>\n> {_shown(example.advice)}"
    return f"### {row.title}\n\n`{row.name}`: {row.signs}.\n\n{told}\n"


def _shown(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", r"\|")


def _examples() -> dict[str, Cause]:
    """One example for each row; a recording that is named after the row is preferred."""
    found: dict[str, Cause] = {}
    for path in sorted(RECORDED.glob("*.json")):
        for cause in explain(facts_from(json.loads(path.read_text(encoding="utf-8")))):
            if path.stem == cause.situation or cause.situation not in found:
                found[cause.situation] = cause
    missing = [row.name for row in TABLE if row.name not in found]
    if missing:
        raise AssertionError(f"no recorded example of {', '.join(missing)}: this is a bug")
    return found
