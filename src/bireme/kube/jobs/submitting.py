"""Submit a job.yaml to a cluster, also where a job of that name exists already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bireme.core.errors import ClusterError, SpecError, UsageError
from bireme.kube.api.client import SECRET, Cluster
from bireme.kube.api.cluster_facts import ClusterFacts, read_facts, with_facts
from bireme.kube.jobs.lifecycle import delete, jobs_of, view_of
from bireme.kube.jobs.listing import JobView, job_view
from bireme.kube.jobs.volumes import PUSH_IMAGE
from bireme.kube.submit.certificates import JobIdentity, forgotten_unless_used, make_certificates
from bireme.kube.submit.objects import build
from bireme.kube.submit.placement import place
from bireme.kube.submit.submission import Submission, read_program
from bireme.kube.submit.submit import Outcome, decoded, is_unchanged, look_up, refuse_foreign, send, submit
from bireme.spec.load import ClusterJob, command_name, places


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that was submitted, or that exists as its file says."""

    submission: Submission
    outcome: Outcome | Literal["replaced"]
    view: JobView | None = None
    """The state of a job that existed already."""

    @property
    def is_suspended(self) -> bool:
        return self.view is not None and self.view.state == "suspended"

    @property
    def next_step(self) -> str:
        return _next_step(self.submission)


def prepare(spec: ClusterJob, namespace: str, image: str | None, facts: ClusterFacts | None = None) -> Submission:
    """The submission of a file on a cluster with these facts, still without certificates."""
    spec = with_facts(spec, facts)
    chosen = image or spec.settings.image
    if chosen is None:
        way = "name it with --image or `kubernetes.image` in job.yaml"
        raise SpecError(
            "no image is given",
            why="pods run an image that holds bireme",
            fix=f"build one with `bireme image build`, then {PUSH_IMAGE if facts else way}",
        )
    job = place(spec, namespace)
    source = Path(spec.job.config).parent
    program = {} if spec.settings.program else read_program(source, without=Path(spec.job.output))
    return Submission(job, spec.settings, namespace, chosen, program)


def try_out(cluster: Cluster, spec: ClusterJob, image: str | None) -> Submission:
    """Let the API server check a job's objects without storing them."""
    submission = prepare(spec, cluster.namespace, image, read_facts(cluster))
    send(cluster, build(submission), is_trial=True)
    return submission


def submit_job(cluster: Cluster, spec: ClusterJob, image: str | None, *, is_replacing: bool) -> Submitted:
    """Submit a job; with `is_replacing`, delete a job of that name first if it differs, has failed or is suspended."""
    submission = prepare(spec, cluster.namespace, image, read_facts(cluster))
    is_replaced = is_replacing and delete_replaced(cluster, submission)
    outcome = _submit(cluster, submission)
    if outcome == "created":
        return Submitted(submission, "replaced" if is_replaced else outcome)
    return Submitted(submission, outcome, _existing(cluster, submission, outcome))


def delete_replaced(cluster: Cluster, submission: Submission) -> bool:
    """Delete the job that a submission replaces; False where there is none, or one that is the same.

    A running job is refused. The volume stays, and with it all that its pods have trained.
    """
    name = submission.job.name
    jobs = jobs_of(cluster, name)
    if not jobs:
        return False
    view = job_view(jobs)
    if view.state == "running" or (view.state == "starting" and view.status.trainers):
        cancel = f"`{command_name()} cancel {name} --namespace {cluster.namespace}`"
        fix = f"cancel it first with {cancel}, then submit it again with `--replace`"
        raise UsageError(f"{name} is not replaced: it runs", fix=fix)
    if is_unchanged(jobs, submission) and view.state not in ("failed", "cancelled", "suspended"):
        return False
    refuse_foreign(look_up(cluster, build(submission)), name)
    delete(cluster, name, with_volume=False)
    return True


def _submit(cluster: Cluster, submission: Submission) -> Outcome:
    """Submit a job; if that fails, remove a new certificate authority that no Secret on the cluster uses."""
    name, settings, state = submission.job.name, submission.settings, places().state
    if not settings.tls:
        return submit(cluster, submission)
    whose = JobIdentity(cluster.server, cluster.namespace, name)

    def in_use() -> bytes | None:
        return decoded(cluster.find(SECRET, f"{name}-tls")).get("ca.crt")

    with forgotten_unless_used(state, whose, in_use):
        return submit(cluster, submission, lambda: make_certificates(state, whose, settings.certificate_days))


def _existing(cluster: Cluster, submission: Submission, outcome: Outcome) -> JobView:
    """The state of a job that existed already; a failed one does not start again by itself."""
    view = view_of(cluster, submission.job.name)
    if view.state != "failed":
        return view
    renewed = "; its certificate was renewed" if outcome == "renewed" else ""
    raise ClusterError(
        f"{view.name} is on the cluster as it is in the file, and has failed before: "
        f"{view.reason or 'Kubernetes says no more'}{renewed}",
        why="submitting it once more does not start it again",
        fix=f"{_next_step(submission)}; `--replace` takes it away and submits it anew",
    )


def _next_step(submission: Submission) -> str:
    return f"`{command_name()} resume {submission.job.name} --namespace {submission.namespace}` continues it"
