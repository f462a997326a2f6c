"""What users of `import bireme` rely on: the names, and how they are called. A change here breaks their programs."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bireme
from bireme.api.jobs import Job, Run
from bireme.api.models import Model

SIZES = "trainers=None, pservers=None, passes=None"
PLACE = "context=None, namespace=None"
FUNCTIONS = {
    "load": "(file, *, kube=False, **overrides)",
    "model": "(path, job=None)",
    "run": f"(name=None, *, kube=False, {PLACE})",
    "runs": f"(*, kube=False, {PLACE})",
}
METHODS: dict[type, dict[str, str]] = {
    Job: {
        "run": f"(self, *, {SIZES}, seed=None, output=None, wait=True, progress=True)",
        "submit": f"(self, *, {PLACE}, image=None, {SIZES}, seed=None, replace=False, wait=False, progress=True)",
    },
    Run: {
        "cancel": "(self, *, now=False)",
        "delete": "(self, *, volume=False)",
        "fetch": "(self, directory)",
        "logs": "(self, last=None, *, node=None, role=None)",
        "model": "(self, pass_id=None)",
        "resume": f"(self, *, {SIZES}, wait=True, progress=True)",
        "status": "(self)",
        "wait": "(self, *, progress=False)",
        "why": "(self)",
    },
    Model: {"parameters": "(self)", "predict": "(self, samples=None)", "test": "(self)"},
}
ALL = [
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


def called(function: Callable[..., Any]) -> str:
    """A signature without types."""
    found = inspect.signature(function)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_the_public_names_are_these() -> None:
    assert vars(bireme)["__all__"] == ALL


def test_completion_lists_names_that_are_not_imported_yet() -> None:
    assert set(ALL) <= set(dir(bireme))


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse(Path(bireme.__file__).with_suffix(".pyi").read_text("utf-8")).body
    names = {alias.asname for node in stub if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"__version__"} == set(ALL)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_called_like_this(name: str) -> None:
    assert called(getattr(bireme, name)) == FUNCTIONS[name]


@pytest.mark.parametrize("kind", METHODS)
def test_methods_are_called_like_this(kind: type) -> None:
    methods = {name: of for name, of in vars(kind).items() if inspect.isfunction(of) and not name.startswith("_")}
    assert {name: called(of) for name, of in methods.items()} == METHODS[kind]
