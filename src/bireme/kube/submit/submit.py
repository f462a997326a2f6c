"""Sending a job to a cluster, so that sending it twice is safe.

A name that belongs to somebody else is refused before anything is written. A job that is there with the same digest is
left alone, but for what is missing around it; one with another digest is refused with what has changed, because a Job
cannot be changed. Certificates are made when all that is known and they are about to be sent. All objects but the
volume claim belong to the first Job, so deleting that deletes them.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from bireme.core.errors import BiremeError, ClusterError, OutputExistsError
from bireme.job.output.ownership import changed
from bireme.kube.api import naming
from bireme.kube.api.client import CONFIG_MAP, JOB, KINDS, SECRET, Cluster
from bireme.kube.submit.certificates import needs_renewal
from bireme.kube.submit.objects import build
from bireme.kube.submit.submission import Object, Submission, program_key, settings_of
from bireme.spec.job import Job
from bireme.spec.kubernetes import KubernetesFile
from bireme.spec.load import command_name

Outcome = Literal["created", "unchanged", "renewed"]
Certify = Callable[[], Mapping[str, bytes]]
"""Makes ca.crt, tls.crt and tls.key; nothing without TLS."""
CAN_WAIT = ("PodDisruptionBudget", "Role", "RoleBinding")
"""What pods do not need in order to start."""
_SHOWN = 6
"""Changes that are told one by one."""


def submit(cluster: Cluster, told: Submission, certify: Certify = dict) -> Outcome:
    """Bring a job to the cluster; refuses names that are taken and jobs that differ from what is there."""
    found = look_up(cluster, build(told))
    refuse_foreign(found, told.job.name)
    main = found.get(("Job", told.main_job))
    if has_other_shape(cluster, told) or (main is not None and digest_of(main) != told.digest):
        # It may be this very file, and the job resumed with more passes since: its certificate must not run out.
        raise _differs(cluster, told, is_renewed=_renew_alone(cluster, told, certify, found))
    if main is None:
        send_first(cluster, build(replace(told, certificates=certify())), found)
        return "created"
    if _needs_certificate(told, found):
        told = replace(told, certificates=certify())
    made = build(told)
    # The Job is as it should be, the Secret is in use, and what the ConfigMap says may have been changed by `resume`:
    # of the rest, what somebody has changed is put right.
    kept = ("Job", "Secret", "ConfigMap")
    send(cluster, [each for each in made if key_of(each) not in found or each["kind"] not in kept])
    return _renew(cluster, told, made, found)


def digest_of(job: Object) -> str | None:
    """What a Job was submitted with, in one hash."""
    told: str | None = (job["metadata"].get("annotations") or {}).get(naming.DIGEST)
    return told


def is_as_told(jobs: Sequence[Object], told: Submission) -> bool:
    """Whether the Jobs of a job, the one with the status first, are those that a submission would make."""
    names = {each["metadata"]["name"] for each in jobs}
    return names == _job_names(told) and digest_of(jobs[0]) == told.digest


def _job_names(told: Submission) -> set[str]:
    return {naming.job_name(told.job.name, role) for role in told.roles}


def _needs_certificate(told: Submission, found: Mapping[tuple[str, str], Object]) -> bool:
    """Whether the certificate on the cluster is missing, torn or soon over."""
    there = decoded(found.get(("Secret", f"{told.job.name}-tls")))
    return told.settings.tls and not (_is_whole(there) and not needs_renewal(there["tls.crt"]))


def _is_whole(certificates: Mapping[str, bytes]) -> bool:
    return {"ca.crt", "tls.crt", "tls.key"} <= certificates.keys()


def _renew_alone(cluster: Cluster, told: Submission, certify: Certify, found: Mapping[tuple[str, str], Object]) -> bool:
    """Renew the certificate of a job that is otherwise left as it is, if it is soon over and that can be done here."""
    if not _needs_certificate(told, found):
        return False
    told = replace(told, certificates=certify())
    try:
        return _renew(cluster, told, build(told), found) == "renewed"
    except ClusterError:
        return False


def _renew(cluster: Cluster, told: Submission, made: list[Object], found: Mapping[tuple[str, str], Object]) -> Outcome:
    """Replace a certificate that is soon over; pods take the new one for new connections."""
    name = f"{told.job.name}-tls"
    there = decoded(found.get(("Secret", name)))
    if not told.certificates:
        return "unchanged"
    if _is_whole(there) and there["ca.crt"] != told.certificates["ca.crt"]:
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


def look_up(cluster: Cluster, made: list[Object]) -> dict[tuple[str, str], Object]:
    """What is on the cluster already under the names of objects."""
    looked = {key_of(each): cluster.find(KINDS[each["kind"]], each["metadata"]["name"]) for each in made}
    found = {key: there for key, there in looked.items() if there is not None}
    for kind, name in (key for key, there in found.items() if there["metadata"].get("deletionTimestamp")):
        raise ClusterError(f"the {kind} {name} is being deleted", fix="try again in a moment")
    return found


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


def has_other_shape(cluster: Cluster, told: Submission) -> bool:
    """Whether a job is there with its pservers and trainers in Jobs of other names."""
    there = cluster.list(JOB, naming.labels_of(told.job.name))
    return any(each["metadata"]["name"] not in _job_names(told) for each in there)


def send_first(cluster: Cluster, made: list[Object], found: Mapping[tuple[str, str], Object]) -> None:
    """Bring a job that is not there; where an object is refused, those that were just made are taken away again.

    Where the API server is lost on the way they stay: pods may run already, and submitting again makes the rest.
    """
    new: list[Object] = []

    def put(each: Object) -> None:
        if key_of(each) in found:
            cluster.apply(each)
        else:
            cluster.create(each)  # refused where somebody else has been faster, whose it then is
            new.append(each)

    try:
        send(cluster, made, put)
    except ClusterError:
        for each in reversed(new):  # Jobs before what their pods need, the volume last
            with contextlib.suppress(BiremeError):
                cluster.delete(KINDS[each["kind"]], each["metadata"]["name"])
        raise


def send(
    cluster: Cluster, made: list[Object], put: Callable[[Object], object] | None = None, *, is_trial: bool = False
) -> None:
    """Apply objects: first what pods need, then the Jobs, and while these make pods, what is around them."""
    put = put or (lambda each: cluster.apply(each, is_trial=is_trial))
    jobs = [each for each in made if each["kind"] == "Job"]
    others = [each for each in made if each["kind"] != "Job"]
    for each in others:
        if each["kind"] not in CAN_WAIT:
            put(each)
    for each in jobs:
        put(each)
    for each in others:
        if each["kind"] in CAN_WAIT and not (is_trial and each["kind"] == "RoleBinding"):
            # (Whether a Role may be given away can only be checked once there is one.)
            put(each)
    if is_trial:
        return
    main = _owner(cluster, made)
    if main is not None:
        own(cluster, main, [*others, *(each for each in jobs if each["metadata"]["name"] != main["metadata"]["name"])])


def _owner(cluster: Cluster, made: list[Object]) -> Object | None:
    """The Job to which all else of a job belongs, be it sent just now or there before."""
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


def _differs(cluster: Cluster, told: Submission, *, is_renewed: bool) -> OutputExistsError:
    name = told.job.name
    try:
        then: Submission | None = read_back(cluster, name)
    except ClusterError:
        then = None  # of another version: that it differs is all that can be said
    changes = list(changes_between(then, told)) if then else []
    resume = f"{command_name()} resume {name} --namespace {cluster.namespace}"
    more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    # What only says how pods are placed leaves the run as it is: it goes on in the same directory.
    is_same_run = then is not None and then.job == told.job and then.program == told.program
    elsewhere = "" if is_same_run else ", and with another `output` if that one has trained already"
    return OutputExistsError(
        f"{name} was submitted before, and not as it is now{'; its certificate was renewed' if is_renewed else ''}",
        why="; ".join([*changes[:_SHOWN], *more]) or "it was submitted by another version of bireme",
        fix=f"submit it with `--replace`, which takes the old one away first (the volume stays){elsewhere}; or choose "
        f"another `name`; or `{resume}` goes on with the job as it was",
    )


def changes_between(then: Submission, now: Submission) -> Iterator[str]:
    """In words, what is not as it was submitted."""
    for was, is_ in (
        (msgspec.to_builtins(then.job), msgspec.to_builtins(now.job)),
        (settings_of(then), settings_of(now)),
    ):
        yield from changed("", was, is_)
    for path in sorted({*then.program, *now.program}):
        if then.program.get(path) != now.program.get(path):
            how = "is new" if path not in then.program else "is gone" if path not in now.program else "has changed"
            yield f"{path} {how}"
