"""Sending a job to a cluster, so that sending it twice is safe.

A name that belongs to somebody else is refused before anything is written. A job that is there with the same digest is
left alone, but for what is missing around it; one with another digest is refused with what has changed, because a Job
cannot be changed. All objects but the volume claim belong to the first Job, so deleting that deletes them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from bireme.core.errors import ClusterError, OutputExistsError
from bireme.kube import naming
from bireme.kube.certifying import needs_renewal
from bireme.kube.client import CONFIG_MAP, JOB, KINDS, SECRET, Cluster
from bireme.kube.objects import build
from bireme.kube.submission import Object, Submission, program_key, settings_of
from bireme.spec.job import Job
from bireme.spec.kubernetes import KubernetesFile

Outcome = Literal["created", "unchanged", "renewed"]
CAN_WAIT = ("PodDisruptionBudget", "Role", "RoleBinding")
"""What pods do not need in order to start."""
_SHOWN = 6
"""Changes that are told one by one."""


def submit(cluster: Cluster, told: Submission) -> Outcome:
    """Bring a job to the cluster; refuses names that are taken and jobs that differ from what is there."""
    made = build(told)
    found = _look_up(cluster, made)
    refuse_foreign(found, told.job.name)
    main = found.get(("Job", naming.main_job(told.job)))
    if main is None:
        refuse_other_shape(cluster, told)
        send(cluster, made)
        return "created"
    if main["metadata"].get("annotations", {}).get(naming.DIGEST) != told.digest:
        raise _differs(cluster, told)
    # The Job is as it should be, and the Secret is in use: of the rest, what somebody has changed is put right.
    send(cluster, [each for each in made if key_of(each) not in found or each["kind"] not in ("Job", "Secret")])
    return _renew(cluster, told, made, found)


def _renew(cluster: Cluster, told: Submission, made: list[Object], found: Mapping[tuple[str, str], Object]) -> Outcome:
    """Replace a certificate that is soon over; pods take the new one for new connections."""
    name = f"{told.job.name}-tls"
    there = decoded(found.get(("Secret", name)))
    is_whole = {"ca.crt", "tls.crt", "tls.key"} <= there.keys()
    if not told.certificates or (is_whole and not needs_renewal(there["tls.crt"])):
        return "unchanged"
    if is_whole and there["ca.crt"] != told.certificates["ca.crt"]:
        raise ClusterError(
            f"the certificate of {told.job.name} is soon over, and cannot be renewed from here",
            why="the key of the job's authority is where it was submitted first",
            fix="submit it again there; or stop it with `bireme cancel`, delete the Secret, submit and resume it",
        )
    cluster.apply(next(each for each in made if key_of(each) == ("Secret", name)))
    return "renewed"


def key_of(thing: Object) -> tuple[str, str]:
    """What tells an object from the others of its job."""
    return thing["kind"], thing["metadata"]["name"]


def _look_up(cluster: Cluster, made: list[Object]) -> dict[tuple[str, str], Object]:
    found = {key_of(each): cluster.find(KINDS[each["kind"]], each["metadata"]["name"]) for each in made}
    return {key: there for key, there in found.items() if there is not None}


def refuse_foreign(found: Mapping[tuple[str, str], Object], name: str) -> None:
    """Refuse to touch what bireme has not made, or has made for another job."""
    for (kind, called), thing in found.items():
        labels = thing["metadata"].get("labels") or {}
        if naming.is_ours(thing) and labels.get(naming.INSTANCE) == name:
            continue
        whose = f"the job {labels.get(naming.INSTANCE)}" if naming.is_ours(thing) else "something that is not bireme's"
        raise OutputExistsError(
            f"the name {called} is taken: there is a {kind} of {whose} in the namespace",
            why="it would be overwritten",
            fix="choose another `name` in job.yaml, or another namespace with --namespace",
        )


def refuse_other_shape(cluster: Cluster, told: Submission) -> None:
    """Refuse a job that is there with its pservers and trainers in Jobs of other names."""
    there = cluster.list(JOB, naming.labels_of(told.job.name))
    wanted = {naming.job_name(told.job.name, role) for role in naming.roles_of(told.job)}
    if any(each["metadata"]["name"] not in wanted for each in there):
        raise _differs(cluster, told)


def send(cluster: Cluster, made: list[Object], *, is_trial: bool = False) -> None:
    """Apply objects: first what pods need, then the Jobs, and while these make pods, what is around them."""
    jobs = [each for each in made if each["kind"] == "Job"]
    others = [each for each in made if each["kind"] != "Job"]
    for each in others:
        if each["kind"] not in CAN_WAIT:
            cluster.apply(each, is_trial=is_trial)
    sent = [cluster.apply(each, is_trial=is_trial) for each in jobs]
    for each in others:
        if each["kind"] in CAN_WAIT and not (is_trial and each["kind"] == "RoleBinding"):
            # (Whether a Role may be given away can only be checked once there is one.)
            cluster.apply(each, is_trial=is_trial)
    if is_trial:
        return
    main = sent[0] if sent else _owner(cluster, made)
    if main is not None:
        own(cluster, main, [*others, *jobs[1:]])


def _owner(cluster: Cluster, made: list[Object]) -> Object | None:
    """The Job that is there already, when only what is around it was sent."""
    if not made:
        return None
    there = cluster.list(JOB, naming.labels_of(made[0]["metadata"]["labels"][naming.INSTANCE]))
    return min(there, key=lambda each: str(each["metadata"]["name"]), default=None)


def own(cluster: Cluster, main: Object, things: Iterable[Object]) -> None:
    """Make a Job the owner of objects, all but volume claims."""
    owner = {"apiVersion": JOB.api, "kind": JOB.kind, "name": main["metadata"]["name"], "uid": main["metadata"]["uid"]}
    change = {"metadata": {"ownerReferences": [owner]}}
    owned = [each for each in things if each["kind"] != "PersistentVolumeClaim"]
    for each in owned:
        cluster.patch(KINDS[each["kind"]], each["metadata"]["name"], change)


def disown(cluster: Cluster, things: Iterable[Object]) -> None:
    """Let objects outlive the Job that owns them."""
    change: Object = {"metadata": {"ownerReferences": None}}
    for each in things:
        if cluster.find(KINDS[each["kind"]], each["metadata"]["name"]) is not None:
            cluster.patch(KINDS[each["kind"]], each["metadata"]["name"], change)


def read_back(cluster: Cluster, name: str) -> Submission:
    """What a job was submitted with, from what it left on the cluster."""
    there = cluster.find(CONFIG_MAP, name)
    if there is None or "job.json" not in there.get("data", {}):
        raise ClusterError(
            f"the ConfigMap {name} of the job is gone", fix="submit it again from its job.yaml with `bireme submit`"
        )
    try:
        return submission_in(there, cluster.find(SECRET, f"{name}-tls"))
    except (msgspec.MsgspecError, KeyError, ValueError) as e:
        raise ClusterError(
            f"what {name} was submitted with cannot be read: {e}",
            why="another version of bireme has submitted it",
            fix="use that version, or submit the job's file again",
        ) from e


def submission_in(there: Object, secret: Object | None) -> Submission:
    """The submission that a ConfigMap and a Secret hold."""
    text, binary = there["data"], there.get("binaryData") or {}
    settings = msgspec.json.decode(text["settings.json"], type=dict[str, Any])
    keys = {path: program_key(path) for path in msgspec.json.decode(text["program.json"], type=list[str])}
    return Submission(
        job=msgspec.json.decode(text["job.json"], type=Job),
        settings=msgspec.convert(settings, KubernetesFile),
        namespace=settings["namespace"],
        image=settings["image"],
        program={p: text[key].encode() if key in text else base64.b64decode(binary[key]) for p, key in keys.items()},
        certificates=decoded(secret),
    )


def decoded(secret: Object | None) -> dict[str, bytes]:
    """The files in a Secret; none where there is no Secret."""
    return {name: base64.b64decode(text) for name, text in (secret or {}).get("data", {}).items()}


def _differs(cluster: Cluster, told: Submission) -> OutputExistsError:
    name = told.job.name
    try:
        changes = list(changes_between(read_back(cluster, name), told))
    except ClusterError:
        changes = []  # of another version: that it differs is all that can be said
    named = f"{name} --namespace {cluster.namespace}"
    more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return OutputExistsError(
        f"{name} was submitted before, and not as it is now",
        why="; ".join([*changes[:_SHOWN], *more]) or "it was submitted by another version of bireme",
        fix=f"choose another `name`; or `bireme delete {named}` (the volume stays) and submit again with another "
        f"`output`; or `bireme resume {named}` goes on with the job as it was",
    )


def changes_between(then: Submission, now: Submission) -> Iterator[str]:
    """In words, what is not as it was submitted."""
    for was, is_ in (
        (msgspec.to_builtins(then.job), msgspec.to_builtins(now.job)),
        (settings_of(then), settings_of(now)),
    ):
        yield from _changed("", was, is_)
    for path in sorted({*then.program, *now.program}):
        if then.program.get(path) != now.program.get(path):
            how = "is new" if path not in then.program else "is gone" if path not in now.program else "has changed"
            yield f"{path} {how}"


def _changed(at: str, was: Any, is_: Any) -> Iterator[str]:
    if isinstance(was, Mapping) and isinstance(is_, Mapping):
        for key in {**was, **is_}:
            yield from _changed(f"{at}.{key}" if at else str(key), was.get(key), is_.get(key))
    elif was != is_:
        yield f"{at} {was} → {is_}"
