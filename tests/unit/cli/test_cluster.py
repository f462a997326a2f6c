"""Which job is meant, here or on a cluster, and the messages where there is no cluster."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.cli.conftest import Leave
from tests.unit.cli.test_jobs import record
from tests.unit.kube.making import PLAIN, write_job

from bireme.api.kube import certificate_lines
from bireme.api.where import Where, is_here
from bireme.cli.jobs.control import cancel, delete, fetch
from bireme.cli.jobs.listing import list_, logs, status
from bireme.cli.jobs.submit import submit
from bireme.core.errors import BiremeError, SpecError, UsageError
from bireme.job.status import JobStatus
from bireme.spec.load import places

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: near
contexts:
  - {name: near, context: {cluster: near, user: me, namespace: mine}}
clusters:
  - {name: near, cluster: {server: "http://127.0.0.1:%d"}}
users:
  - {name: me, user: {token: abc}}
"""


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kubeconfig whose cluster accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(KUBECONFIG % server.getsockname()[1])
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield server


def invoke(command: Any, *arguments: object) -> Any:
    return CliRunner().invoke(command, [str(a) for a in arguments])


def test_a_name_that_is_known_here_is_a_local_job(leave: Leave, silent: Any) -> None:
    record(leave(done=1), "finished", 1.0)
    notes: list[str] = []
    assert is_here("small", Where(), notes.append)
    assert not is_here("elsewhere", Where(), notes.append)
    assert not is_here("small", Where(is_kube=True), notes.append) and notes == []


def test_without_a_cluster_an_unknown_name_is_unknown() -> None:
    with pytest.raises(UsageError, match=r"no job has run on this machine yet|there is no job 'x'"):
        is_here("x", Where(), print)
    for command in (status, logs, cancel, delete):
        failed = invoke(command, "x", "--namespace", "there")
        assert isinstance(failed.exception, UsageError)
        assert "there is no kubeconfig" in failed.exception.what and "no-cluster" in failed.exception.what


def test_a_job_here_is_distinguished_from_one_submitted(leave: Leave, tmp_path: Path) -> None:
    record(leave(done=1), "finished", 1.0)
    assert "--kube" not in invoke(status, "small").output
    (places().state / "ca" / "0123" / "default" / "small").mkdir(parents=True)
    assert (
        "note: this is the job on this machine; for the one on the cluster, add --kube"
        in invoke(status, "small").output
    )


@pytest.mark.parametrize(("command", "arguments"), [(delete, ["small"]), (fetch, ["small", "there"])])
def test_a_job_here_has_nothing_to_fetch_or_delete(
    leave: Leave, silent: Any, command: Any, arguments: list[str]
) -> None:
    output = leave(done=1)
    record(output, "finished", 1.0)
    refused = invoke(command, *arguments).exception
    assert isinstance(refused, UsageError) and "small is a job of this machine" in refused.what
    assert str(output) in refused.fix and "--kube" in refused.fix
    (places().state / "ca" / "0123" / "default" / "small").mkdir(parents=True)
    assert not is_here("small", Where(), print, prefers_cluster=True), "the one that was submitted is meant"
    assert not is_here("small", Where(is_kube=True), print)


def test_a_cluster_that_does_not_answer_is_left_out_of_the_list(leave: Leave, silent: Any) -> None:
    record(leave(done=1), "finished", 1.0)
    began = time.monotonic()
    done = invoke(list_)
    assert done.exit_code == 0 and time.monotonic() - began < 10
    assert "small" in done.output
    assert "note: the cluster is left out" in done.output
    answer = json.loads(invoke(list_, "--json").output)
    assert answer["cluster"] == [] and "note" in answer


def test_an_unknown_context_is_refused_with_those_that_are_there(silent: Any) -> None:
    failed = invoke(status, "x", "--context", "far")
    assert isinstance(failed.exception, UsageError)
    assert "there is no context 'far'" in failed.exception.what and "near" in failed.exception.fix


def test_a_kubeconfig_that_is_none_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad").write_text("just words")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "bad"))
    failed = invoke(status, "x", "--kube")
    assert isinstance(failed.exception, BiremeError) and "bad" in failed.exception.what


def test_a_dry_run_needs_no_cluster_and_prints_yaml(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    path = write_job(tmp_path, PLAIN)
    done = invoke(submit, "--dry-run", path, "--image", "b:1", "--namespace", "there")
    assert done.exit_code == 0, done.output
    found = list(YAML(typ="safe", pure=True).load_all(done.output))
    assert [each["kind"] for each in found][-1] == "Job"
    assert {each["metadata"]["namespace"] for each in found} == {"there"}
    answer = json.loads(invoke(submit, path, "--image", "b:1", "--dry-run", "--json").output)
    assert len(answer["objects"]) == len(found)


def test_permissions_are_printed_as_a_role() -> None:
    assert "kind: Role" in invoke(submit, "--permissions").output


def test_a_submission_without_a_file_or_an_image_is_refused(tmp_path: Path) -> None:
    assert isinstance(invoke(submit).exception, UsageError)
    failed = invoke(submit, write_job(tmp_path, PLAIN), "--dry-run")
    assert isinstance(failed.exception, SpecError) and "no image" in failed.exception.what


@pytest.mark.parametrize(("days", "words"), [(89.0, []), (12.3, ["12 more days"]), (-1.0, ["0 more days"])])
def test_a_certificate_that_is_soon_over_is_reported(days: float, words: list[str]) -> None:
    lines = list(certificate_lines(JobStatus(certificate_until=1000.0 + 86400 * days), 1000.0))
    assert len(lines) == len(words)
    assert all(word in line and "submit the same file again" in line for word, line in zip(words, lines, strict=True))
    assert list(certificate_lines(JobStatus(), 1000.0)) == [], "a job without TLS"


def test_a_time_that_is_none_is_refused() -> None:
    failed = invoke(logs, "x", "--since", "soon")
    assert failed.exit_code == 2 and "is no time" in failed.output
