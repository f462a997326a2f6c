"""bireme: training with parameter servers that ends with the same bits, whatever happens on the way.

From Python:

    job = bireme.load("job.yaml")
    run = job.run(trainers=3)                   # shows progress, and waits; wait=False returns at once
    run.status(), run.logs(last=20), run.why()
    model = run.model()                         # or bireme.model("output/pass-00009")
    run = job.submit(namespace="training")      # the same on Kubernetes; later: bireme.run("first-job", kube=True)
    model.hash, model.parameters(), model.predict(["a truly wonderful camera"])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = [
    "BiremeError",
    "Job",
    "JobStatus",
    "Model",
    "PassSummary",
    "Run",
    "RunStatus",
    "__version__",
    "load",
    "model",
    "run",
    "runs",
]

_HOMES = {
    "BiremeError": "bireme.core.errors",
    "JobStatus": "bireme.job.status",
    "Model": "bireme.api.models",
    "model": "bireme.api.models",
    "PassSummary": "bireme.job.status",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: pservers and the command line start without them. Types: __init__.pyi."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'bireme' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "bireme.api.jobs")), name)


def __dir__() -> list[str]:
    return __all__
