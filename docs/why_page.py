"""The page "Why is my job not running", generated from the table of situations: python docs/generate.py calls it.

Every example is what `explain` says today about facts that were recorded on a real cluster (or from a real run on one
machine), so a sentence on the page cannot differ from what the command prints.
"""

from __future__ import annotations

import json
from pathlib import Path

from bireme.diagnose.evidence import Cause, evidence_from
from bireme.diagnose.explain import explain
from bireme.diagnose.table import Situation, chapters, situations

RECORDED = Path(__file__).resolve().parents[1] / "tests/unit/diagnose/recorded"
HEAD = """\
# Why is my job not running

`bireme why JOB` answers in two sentences: the cause, and what to do about it. Further causes stand below; the one to
solve first comes first. The command only reads, and works for jobs on this machine as well.

```
bireme why quick-start --namespace training
bireme why quick-start --json
```

On a cluster it reads the job's Jobs, pods and events, and where something is wrong also nodes, volume claims, the
certificate's end and the last lines of the pods' logs. What you have no permission to read is left out, with a note
that names the permission. Nodes belong to the whole cluster: without the permission to list them, sentences have fewer
figures.

This page is generated from the table that the command uses. Its examples are answers about real objects, recorded on a
cluster.
"""


def page() -> str:
    """The whole page."""
    examples = _examples()
    parts = [HEAD]
    for chapter in chapters():
        parts += [f"## {chapter.title}\n", *(_section(row, examples[row.id]) for row in chapter.situation)]
    return "\n".join(parts)


def _section(row: Situation, example: Cause) -> str:
    answer = f"> {_shown(example.cause)}<br>\n> {_shown(example.advice)}"
    return f"### {row.title}\n\n`{row.id}`: {row.signs}.\n\n{answer}\n"


def _shown(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", r"\|")


def _examples() -> dict[str, Cause]:
    """One example for each row; a recording that is named after the row is preferred."""
    examples: dict[str, Cause] = {}
    for path in sorted(RECORDED.glob("*.json")):
        for cause in explain(evidence_from(json.loads(path.read_text(encoding="utf-8")))):
            if path.stem == cause.situation or cause.situation not in examples:
                examples[cause.situation] = cause
    missing = [row.id for row in situations() if row.id not in examples]
    if missing:
        raise AssertionError(f"no recorded example of {', '.join(missing)}: this is a bug")
    return examples
