"""Images that a node cannot get, or cannot run, by the messages of registry and kubelet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    events_about,
    grouped,
    last_words,
    name_of,
    situation,
    waiting_states,
    waiting_words,
)
from bireme.diagnose.words import (
    AGAIN,
    architecture_of,
    image_of,
    kubectl,
    listed,
    names,
    node_of,
    of,
    pods_words,
    sentence,
)

PULLING = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")


def pull_words(facts: Facts, pod: Json) -> str:
    """All messages about pulling an image for a pod; a back-off's reason is only in its events."""
    states = [w for w in waiting_states(pod) if w.get("reason") in PULLING]
    if not states:
        return ""
    messages = [str(w.get("message", "")) for w in states]
    messages += [str(e.get("message", "")) for e in events_about(facts, name_of(pod)) if e.get("reason") == "Failed"]
    return " ".join(messages)


def _pulls(facts: Facts, pattern: str, but: str = r"(?!)") -> Iterator[tuple[str, list[Json]]]:
    def group_key(pod: Json) -> str | None:
        said = pull_words(facts, pod)
        is_so = re.search(pattern, said, re.IGNORECASE) and not re.search(but, said, re.IGNORECASE)
        return image_of(pod) if is_so else None

    yield from grouped(facts, group_key)


_ABSENT = r"not found|manifest unknown|NotFound"
_DENIED = r"\b(?:401|403)\b|unauthorized|forbidden|authorization failed|access denied|no basic auth"
_UNREACHED = r"dial tcp|no such host|i/o timeout|connection refused|x509|TLS handshake|context deadline|proxyconnect"


@situation(
    "image-not-found",
    "The image does not exist",
    "a container waits with `ErrImagePull` or `ImagePullBackOff`, and the registry says `not found`",
)
def image_not_found(facts: Facts) -> Iterator[Cause]:
    """The registry has no such image or tag."""
    for image, pods in _pulls(facts, _ABSENT, but=_DENIED):
        yield Cause(
            f"The image {image} does not exist in its registry, so {pods_words(pods)} cannot start.",
            f"Push it with `{facts.command} image push`, or correct `kubernetes.image` in job.yaml and {AGAIN}.",
            names(pods),
        )


@situation(
    "pull-denied",
    "The registry refuses to give the image",
    "a container waits with `ErrImagePull` or `ImagePullBackOff`, and the registry says 401, 403 or `denied`",
)
def pull_denied(facts: Facts) -> Iterator[Cause]:
    """Credentials are missing or wrong."""
    for image, pods in _pulls(facts, _DENIED):
        secrets = [str(s.get("name")) for s in (pods[0].get("spec") or {}).get("imagePullSecrets") or ()]
        has = f"with the pull secret {listed(secrets)}" if secrets else "without a pull secret"
        make = kubectl(
            facts, "create secret docker-registry NAME --docker-server=… --docker-username=… --docker-password=…"
        )
        yield Cause(
            f"The registry refuses to give the image {image} to {pods_words(pods)}, "
            f"which {of(pods, 'asks', 'ask')} {has}.",
            f"Make a secret ({make}), name it under `kubernetes.image_pull_secrets` in job.yaml and {AGAIN}.",
            names(pods),
        )


@situation(
    "registry-unreachable",
    "The registry does not answer",
    "a container waits with `ErrImagePull` or `ImagePullBackOff`, and the node cannot reach the registry",
)
def registry_unreachable(facts: Facts) -> Iterator[Cause]:
    """The node's way to the registry is cut, or its certificate is not trusted."""
    for image, pods in _pulls(facts, _UNREACHED, but=f"{_ABSENT}|{_DENIED}"):
        words = pull_words(facts, pods[0])
        said = re.search(
            r"(dial tcp [^\"]+?|x509: [^\"]+?|TLS handshake[^\"]*?|proxyconnect [^\"]+?)(?:\"|$| [A-Z])", words
        )
        where = f" on {node_of(pods[0])}" if node_of(pods[0]) else ""
        yield Cause(
            f"The registry of the image {image} cannot be reached{where}"
            f"{': ' + sentence(said[1], 160) if said else ''}.",
            "Check the registry's name and the nodes' network, proxy and trusted certificates, or load the image into "
            f"the nodes with `{facts.command} image load`.",
            names(pods),
        )


@situation(
    "image-never-pulled",
    "The image is not on the node and may not be pulled",
    "a container waits with `ErrImageNeverPull`",
)
def image_never_pulled(facts: Facts) -> Iterator[Cause]:
    """`imagePullPolicy: Never`, and the image was not loaded into this node."""

    def group_key(pod: Json) -> str | None:
        return next(
            (str(w["image"] or image_of(pod)) for w in waiting_states(pod) if w.get("reason") == "ErrImageNeverPull"),
            None,
        )

    for image, pods in grouped(facts, group_key):
        where = listed(dict.fromkeys(node_of(p) for p in pods))
        yield Cause(
            f"The image {image} is not on {where}, and the pull policy Never forbids to fetch it.",
            f"Load it into every node with `{facts.command} image load`, or set the pull policy to IfNotPresent.",
            names(pods),
        )


@situation("image-name", "The image's name is not one", "a container waits with `InvalidImageName`")
def image_name(facts: Facts) -> Iterator[Cause]:
    """The name is malformed."""

    def group_key(pod: Json) -> str | None:
        return image_of(pod) if any(w.get("reason") == "InvalidImageName" for w in waiting_states(pod)) else None

    for image, pods in grouped(facts, group_key):
        yield Cause(
            f"{image!r} is not the name of an image, so {pods_words(pods)} cannot start.",
            f"Write it as REGISTRY/NAME:TAG, in small letters, under `kubernetes.image` in job.yaml and {AGAIN}.",
            names(pods),
        )


@situation(
    "wrong-architecture",
    "The image is for another processor",
    "a container ended with `exec format error`, or the registry has `no match for platform`",
)
def wrong_architecture(facts: Facts) -> Iterator[Cause]:
    """Programs of one processor do not run on another."""

    def group_key(pod: Json) -> str | None:
        said = " ".join([pull_words(facts, pod), *last_words(facts, pod), *waiting_words(pod)])
        return image_of(pod) if re.search(r"exec format error|no match for platform", said) else None

    for image, pods in grouped(facts, group_key):
        node = node_of(pods[0])
        kind = architecture_of(facts, node)
        yield Cause(
            f"The image {image} is for another processor than {f'{kind}, which ' if kind else ''}"
            f"{node or 'the node'} has: exec format error.",
            f"Build the image on {kind or 'the same'} machines (`{facts.command} image build`), or choose fitting "
            f"nodes with `kubernetes.node_selector: {{kubernetes.io/arch: …}}`, and {AGAIN}.",
            names(pods),
        )
