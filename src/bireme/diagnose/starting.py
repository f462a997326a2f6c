"""Pods that have a node but do not start: commands, mounts, users and sandboxes.

The kubelet puts a reason and a message into a container's `waiting` state, and events where that is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    ended_states,
    events_about,
    grouped,
    has_ended,
    name_of,
    phase_of,
    situation,
    waiting_states,
    waiting_words,
)
from bireme.diagnose.volumes import mount_failures
from bireme.diagnose.words import (
    AGAIN,
    bireme,
    capital,
    image_of,
    kubectl,
    names,
    node_of,
    nodes_words,
    pods_words,
    sentence,
)


@situation(
    "command-missing",
    "The image lacks what it is to run",
    "a container ended with `executable file not found` or `no such file or directory` before it ran",
)
def command_missing(facts: Facts) -> Iterator[Cause]:
    """An image that is not one of bireme's."""

    def group_key(pod: Json) -> str | None:
        said = " ".join(
            [
                *(
                    str(s.get("message", ""))
                    for s in ended_states(pod)
                    if s.get("reason") in ("StartError", "ContainerCannotRun")
                ),
                *waiting_words(pod),
            ]
        )
        match = re.search(
            r'exec: \\?"([^"\\]+)\\?": .*(?:executable file not found|no such file or directory|permission denied)',
            said,
        )
        return match[1] if match else None

    for program, pods in grouped(facts, group_key):
        yield Cause(
            f"The image {image_of(pods[0])} has no program {program}, so {pods_words(pods)} cannot start.",
            f"Use an image that `{facts.command} image build` made (`kubernetes.image` in job.yaml), or correct the "
            f"command under `kubernetes.patch`, and {AGAIN}.",
            names(pods),
        )


@situation(
    "object-missing",
    "A Secret or ConfigMap is missing",
    "a container waits with `CreateContainerConfigError`, or a `FailedMount` event names it",
)
def object_missing(facts: Facts) -> Iterator[Cause]:
    """A pod needs an object that is not there, or a key that it lacks."""
    pattern = (
        r"(?:(secret|configmap) \"([^\"]+)\" not found)|(?:couldn't find key (\S+) in (Secret|ConfigMap) (\S+))|"
        r"(?:references non-existent (secret|config) key: (\S+))"
    )

    def group_key(pod: Json) -> str | None:
        match = re.search(pattern, " ".join([*waiting_words(pod), *mount_failures(facts, pod)]))
        if not match:
            return None
        if match[1]:
            return f"{'Secret' if match[1] == 'secret' else 'ConfigMap'} {match[2]} does not exist"
        if match[3]:
            return f"{match[4]} {match[5].rpartition('/')[2]} has no key {match[3]}"
        return f"{'Secret' if match[6] == 'secret' else 'ConfigMap'} that it mounts has no key {match[7]}"

    for lack, pods in grouped(facts, group_key):
        yield Cause(
            f"The {lack}, so {pods_words(pods)} cannot start.",
            "Submit the job again, which makes its own, or create it if it is yours "
            f"({kubectl(facts, 'get secrets,configmaps')}).",
            names(pods),
        )


@situation(
    "runs-as-root",
    "The image would run as root",
    "a container waits with `CreateContainerConfigError`, and the message has `runAsNonRoot`",
)
def runs_as_root(facts: Facts) -> Iterator[Cause]:
    """Pods must not run as root, and the image sets no other user."""

    def group_key(pod: Json) -> str | None:
        said = " ".join(waiting_words(pod))
        return image_of(pod) if re.search(r"runAsNonRoot|cannot verify user is non-root|run as root", said) else None

    for image, pods in grouped(facts, group_key):
        yield Cause(
            f"The image {image} would run as root, which {pods_words(pods)} must not.",
            f"Use an image that `{facts.command} image build` made, or give it a number with "
            f"`securityContext: {{runAsUser: 1000}}` under `kubernetes.patch`, and {AGAIN}.",
            names(pods),
        )


@situation(
    "sandbox", "The node cannot make a network for the pod", "a `FailedCreatePodSandBox` event of a pod that waits"
)
def sandbox(facts: Facts) -> Iterator[Cause]:
    """The container runtime or the network plugin is in trouble."""

    def group_key(pod: Json) -> str | None:
        if phase_of(pod) != "Pending" or has_ended(facts):
            return None
        said = [e for e in events_about(facts, name_of(pod)) if e.get("reason") == "FailedCreatePodSandBox"]
        return sentence(str(said[0].get("message", ""))) if said else None

    for said, pods in grouped(facts, group_key):
        node = node_of(pods[0])
        yield Cause(
            f"{nodes_words(pods)} cannot make a sandbox for {pods_words(pods)}: {said}.",
            f"Look after the container runtime and the network plugin of {node or 'that node'} "
            f"(`kubectl describe node {node}`), or keep pods off it with `kubectl cordon {node}`.",
            names(pods),
        )


@situation(
    "cannot-start",
    "A container cannot start, for a reason of its own",
    "a container waits with an error, or ended before it ran, and nothing above fits",
    kind="consequence",
)
def cannot_start(facts: Facts) -> Iterator[Cause]:
    """The kubelet's message as it is."""

    def group_key(pod: Json) -> str | None:
        for state in waiting_states(pod):
            if re.search(r"Err|BackOff", str(state.get("reason"))) and state.get("reason") != "CrashLoopBackOff":
                return f"{state['reason']}: {sentence(str(state.get('message', '')))}"
        for state in ended_states(pod):
            if state.get("reason") in ("StartError", "ContainerCannotRun"):
                return f"{state['reason']}: {sentence(str(state.get('message', '')))}"
        return None

    for said, pods in grouped(facts, group_key):
        yield Cause(
            f"{capital(pods_words(pods))} cannot start: {said}.",
            f"Look at {kubectl(facts, 'describe pod ' + name_of(pods[0]))}, then {bireme(facts, 'logs')}.",
            names(pods),
        )
