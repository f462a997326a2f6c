"""Send a job to a cluster, so that sending it twice is safe.

A name that is taken by foreign objects is refused before the first write. For a job that exists with the same digest
only missing objects are created; one with another digest is refused with a list of changes, because a Job cannot be
changed. Certificates are made last, just before they are sent. All objects but the volume claim belong to the first
Job, so deleting that deletes them.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from bireme.core.errors import BiremeError, ClusterError, OutputExistsError
from bireme.core.text import LISTED_CHANGES, first_of
from bireme.job.output.ownership import changed
from bireme.kube.api import naming
from bireme.kube.api.client import CONFIG_MAP, JOB, KINDS, SECRET, Cluster
from bireme.kube.api.fields import annotations_in, labels_in, meta, name_of
from bireme.kube.api.naming import Object
from bireme.kube.submit.certificates import needs_renewal
from bireme.kube.submit.objects import build
from bireme.kube.submit.submission import Submission, program_key, settings_of
from bireme.spec.job import Job
from bireme.spec.kubernetes import KubernetesFile
from bireme.spec.load import command_name

Outcome = Literal["created", "unchanged", "renewed"]
Certify = Callable[[], Mapping[str, bytes]]
"""Makes ca.crt, tls.crt and tls.key; nothing without TLS."""
Existing = Mapping[tuple[str, str], Object]
"""Objects on the cluster by kind and name."""
CAN_WAIT = ("PodDisruptionBudget", "Role", "RoleBinding")
"""What pods do not need in order to start."""


def submit(cluster: Cluster, submission: Submission, certify: Certify = dict) -> Outcome:
    """Create a job on the cluster; refuse a taken name, and a job that exists with another digest."""
    existing = look_up(cluster, build(submission))
    refuse_foreign(existing, submission.job.name)
    main = existing.get(("Job", submission.main_job))
    # Jobs of other names: pservers and trainers have moved together or apart.
    jobs = cluster.list(JOB, naming.labels_of(submission.job.name))
    has_other_shape = any(name_of(each) not in _job_names(submission) for each in jobs)
    if has_other_shape or (main is not None and digest_of(main) != submission.digest):
        # The file may be unchanged and the job resumed with more passes since: its certificate must not expire.
        raise _differs(cluster, submission, is_renewed=_renew_alone(cluster, submission, certify, existing))
    if main is None:
        send_first(cluster, build(replace(submission, certificates=certify())), existing)
        return "created"
    if _needs_certificate(submission, existing):
        submission = replace(submission, certificates=certify())
    # The Job has this digest, the Secret is in use, and `resume` may have changed the ConfigMap: restore only the rest.
    kept = ("Job", "Secret", "ConfigMap")
    send(cluster, [each for each in build(submission) if key_of(each) not in existing or each["kind"] not in kept])
    return _renew(cluster, submission, existing)


def digest_of(job: Object) -> str | None:
    digest: str | None = annotations_in(job).get(naming.DIGEST)
    return digest


def is_unchanged(jobs: Sequence[Object], submission: Submission) -> bool:
    return {name_of(each) for each in jobs} == _job_names(submission) and digest_of(jobs[0]) == submission.digest


def _job_names(submission: Submission) -> set[str]:
    return {naming.job_name(submission.job.name, role) for role in submission.roles}


def _needs_certificate(submission: Submission, existing: Existing) -> bool:
    there = decoded(existing.get(("Secret", f"{submission.job.name}-tls")))
    return submission.settings.tls and (not _is_whole(there) or needs_renewal(there["tls.crt"]))


def _is_whole(certificates: Mapping[str, bytes]) -> bool:
    return {"ca.crt", "tls.crt", "tls.key"} <= certificates.keys()


def _renew_alone(cluster: Cluster, submission: Submission, certify: Certify, existing: Existing) -> bool:
    """Renew only a job's certificate, if it expires soon and its authority is on this machine."""
    if not _needs_certificate(submission, existing):
        return False
    renewed = replace(submission, certificates=certify())
    try:
        return _renew(cluster, renewed, existing) == "renewed"
    except ClusterError:
        return False


def _renew(cluster: Cluster, submission: Submission, existing: Existing) -> Outcome:
    """Replace a certificate that expires soon; pods use the new one for new connections."""
    name = f"{submission.job.name}-tls"
    there = decoded(existing.get(("Secret", name)))
    if not submission.certificates:
        return "unchanged"
    if _is_whole(there) and there["ca.crt"] != submission.certificates["ca.crt"]:
        raise ClusterError(
            f"the certificate of {submission.job.name} is soon over, and cannot be renewed from here",
            why="the key of the job's authority is where it was submitted first",
            fix="submit it again there; or stop it with `bireme cancel`, delete the Secret, submit and resume it",
        )
    cluster.apply(next(each for each in build(submission) if key_of(each) == ("Secret", name)))
    return "renewed"


def key_of(thing: Object) -> tuple[str, str]:
    return thing["kind"], thing["metadata"]["name"]


def look_up(cluster: Cluster, made: list[Object]) -> dict[tuple[str, str], Object]:
    looked = {(kind, name): cluster.find(KINDS[kind], name) for kind, name in map(key_of, made)}
    existing = {key: there for key, there in looked.items() if there is not None}
    for (kind, name), there in existing.items():
        if meta(there).get("deletionTimestamp"):
            raise ClusterError(f"the {kind} {name} is being deleted", fix="try again in a moment")
    return existing


def refuse_foreign(existing: Existing, name: str) -> None:
    for (kind, called), thing in existing.items():
        owner = labels_in(thing).get(naming.INSTANCE)
        if naming.is_ours(thing) and owner == name:
            continue
        whose = f"the job {owner}" if naming.is_ours(thing) else "something that is not bireme's"
        raise OutputExistsError(
            f"the name {called} is taken: there is a {kind} of {whose} in the namespace",
            why="it would be overwritten",
            fix="choose another `name` in job.yaml, or another namespace with --namespace",
        )


def send_first(cluster: Cluster, made: list[Object], existing: Existing) -> None:
    """Create a new job; where an object is refused, delete those that were just created.

    On a NetworkError they stay: pods may run already, and submitting again creates the rest.
    """
    new: list[Object] = []

    def put(each: Object) -> None:
        if key_of(each) in existing:
            cluster.apply(each)
        else:
            cluster.create(each)  # a conflict if another submission was faster, which owns it then
            new.append(each)

    try:
        send(cluster, made, put)
    except ClusterError:
        for each in reversed(new):  # Jobs before what their pods need, the volume last
            with contextlib.suppress(BiremeError):
                cluster.delete(KINDS[each["kind"]], name_of(each))
        raise


def send(
    cluster: Cluster, made: list[Object], put: Callable[[Object], object] | None = None, *, is_trial: bool = False
) -> None:
    """Apply objects: first those that pods need, then the Jobs, and the rest while pods are created."""
    put = put or (lambda each: cluster.apply(each, is_trial=is_trial))
    needed = [each for each in made if each["kind"] not in ("Job", *CAN_WAIT)]
    jobs = [each for each in made if each["kind"] == "Job"]
    rest = [each for each in made if each["kind"] in CAN_WAIT]
    for each in (*needed, *jobs, *rest):
        # A trial skips RoleBindings: the server checks them against a Role, which a trial has not created.
        if not (is_trial and each["kind"] == "RoleBinding"):
            put(each)
    if made and not is_trial:
        _own(cluster, made)


def _own(cluster: Cluster, made: list[Object]) -> None:
    """Make a job's first Job, just sent or older, the owner of objects, all but volume claims."""
    jobs = cluster.list(JOB, naming.labels_of(made[0]["metadata"]["labels"][naming.INSTANCE]))
    if not jobs:
        return
    main = min(jobs, key=name_of)
    owner = {"apiVersion": "batch/v1", "kind": JOB.kind, "name": name_of(main), "uid": main["metadata"]["uid"]}
    for kind, name in map(key_of, made):
        if kind != "PersistentVolumeClaim" and (kind, name) != (JOB.kind, name_of(main)):
            cluster.patch(KINDS[kind], name, {"metadata": {"ownerReferences": [owner]}})


def disown(cluster: Cluster, things: Iterable[Object]) -> None:
    for kind, name in map(key_of, things):
        if cluster.find(KINDS[kind], name) is not None:
            cluster.patch(KINDS[kind], name, {"metadata": {"ownerReferences": None}})


def submitted_map(cluster: Cluster, name: str) -> Object | None:
    """The ConfigMap that a job was submitted with; None once it is gone."""
    there = cluster.find(CONFIG_MAP, name)
    return there if there is not None and naming.is_ours(there) else None


def read_back(cluster: Cluster, name: str) -> Submission:
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


def _differs(cluster: Cluster, submission: Submission, *, is_renewed: bool) -> OutputExistsError:
    name = submission.job.name
    try:
        then: Submission | None = read_back(cluster, name)
    except ClusterError:
        then = None  # of another version: the changes cannot be listed
    changes = list(changes_between(then, submission)) if then else []
    resume = f"{command_name()} resume {name} --namespace {cluster.namespace}"
    # A change of the settings only keeps the run: it resumes in the same directory.
    is_same_run = then is not None and then.job == submission.job and then.program == submission.program
    elsewhere = "" if is_same_run else ", and with another `output` if that one has trained already"
    return OutputExistsError(
        f"{name} was submitted before, and not as it is now{'; its certificate was renewed' if is_renewed else ''}",
        why=first_of(changes, LISTED_CHANGES, "; ") or "it was submitted by another version of bireme",
        fix=f"submit it with `--replace`, which takes the old one away first (the volume stays){elsewhere}; or choose "
        f"another `name`; or `{resume}` continues the job as it was",
    )


def changes_between(then: Submission, now: Submission) -> Iterator[str]:
    yield from changed("", msgspec.to_builtins(then.job), msgspec.to_builtins(now.job))
    yield from changed("", settings_of(then), settings_of(now))
    for path in sorted({*then.program, *now.program}):
        if then.program.get(path) != now.program.get(path):
            how = "is new" if path not in then.program else "is gone" if path not in now.program else "has changed"
            yield f"{path} {how}"
