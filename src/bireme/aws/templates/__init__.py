"""CloudFormation templates as plain values: one function a stack, from a layout to a dict. No I/O.

Use `template_of`; what a template takes from another stack's outputs is listed in its `Parameters`.
"""

from __future__ import annotations

import json

from bireme.aws.layout import ClusterLayout, StackKind
from bireme.aws.templates.parts import Template
from bireme.aws.templates.platform import platform
from bireme.aws.templates.storage import storage
from bireme.aws.templates.workers import workers

__all__ = ["Template", "body_of", "operator", "template_of", "types_of"]


def template_of(layout: ClusterLayout, kind: StackKind) -> Template:
    """The template of one of a cluster's stacks."""
    return {"storage": storage, "platform": platform, "workers": workers}[kind](layout)


def types_of(layout: ClusterLayout) -> set[str]:
    """The types of resources that all of a cluster's stacks make."""
    return {each["Type"] for kind in layout.stacks for each in template_of(layout, kind)["Resources"].values()}


def body_of(template: Template) -> str:
    """A template as it is sent: without spaces, because CloudFormation takes at most 51,200 bytes."""
    return json.dumps(template, separators=(",", ":"))
