"""Pieces that several templates share: references, tags, parameters, trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Template = dict[str, Any]
Resource = dict[str, Any]
VERSION = "2010-09-09"


def ref(name: str) -> Resource:
    """A parameter's value, or a resource's id."""
    return {"Ref": name}


def att(name: str, attribute: str) -> Resource:
    """An attribute of a resource."""
    return {"Fn::GetAtt": [name, attribute]}


def sub(text: str) -> Resource:
    """A text with `${…}` in it."""
    return {"Fn::Sub": text}


def resource(kind: str, properties: Mapping[str, Any], **more: Any) -> Resource:
    """One resource; `more` is DependsOn, DeletionPolicy and the like."""
    return {"Type": f"AWS::{kind}", **more, "Properties": dict(properties)}


def tag_list(tags: Mapping[str, str], **more: str) -> list[Resource]:
    """Tags in the form of most types."""
    return [{"Key": key, "Value": value} for key, value in {**tags, **more}.items()]


def parameter(description: str, kind: str = "String", **more: Any) -> Resource:
    """A value that is passed when the stack is created."""
    return {"Type": kind, "Description": description, **more}


def trust(service: str, *actions: str) -> Resource:
    """The policy that lets a service assume a role."""
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": list(actions) or ["sts:AssumeRole"]}
    return {"Version": "2012-10-17", "Statement": [statement]}


def managed(*names: str) -> list[Resource]:
    """ARNs of policies that AWS keeps."""
    return [sub(f"arn:${{AWS::Partition}}:iam::aws:policy/{name}") for name in names]


def template(description: str, resources: Mapping[str, Resource], **sections: Any) -> Template:
    """A whole template; empty sections are left out."""
    filled = {name: value for name, value in sections.items() if value}
    return {
        "AWSTemplateFormatVersion": VERSION,
        "Description": description,
        **filled,
        "Resources": dict(resources),
    }


def outputs(**values: tuple[Any, str]) -> Template:
    """What other stacks and commands read: value and description by name."""
    return {name: {"Value": value, "Description": text} for name, (value, text) in values.items()}
