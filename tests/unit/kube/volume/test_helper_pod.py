"""The pod on a volume: how it looks, that it is replaced when it has ended, and the message for its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import pytest

from bireme.core.errors import ClusterError, DataError, NetworkError, UsageError, error_class
from bireme.kube.api import naming
from bireme.kube.api.client import CLAIM, VOLUME_CONTAINER, AbsentError, Cluster, Kind
from bireme.kube.volume.helper_pod import (
    LIFETIME_S,
    PULL_S,
    START_S,
    Pacing,
    PodEndedError,
    VolumePlace,
    VolumePod,
    command_error,
    volume_pod,
)
from bireme.spec.kubernetes import KubernetesFile, ResourcesFile

Json = dict[str, Any]
Ran = tuple[int, bytes, str]
PLACE = VolumePlace("reviews", "bireme:1", KubernetesFile())


class Memory:
    """A namespace of a cluster, in this process; pods run as soon as they are made."""

    namespace, context = "ns", "near"

    def __init__(self) -> None:
        self.things: dict[tuple[str, str], Json] = {}
        self.deleted: list[str] = []
        self.answers: list[Ran | Exception] = []
        """What commands in pods come to."""
        self.ran_in: list[str] = []
        self.logs: dict[str, list[str]] = {}

    def as_cluster(self) -> Cluster:
        return cast(Cluster, self)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def put(self, kind: Kind, name: str, **more: Any) -> Json:
        made = {"metadata": {"name": name, "labels": {}}, **more}
        self.things[kind.kind, name] = made
        return made

    def create(self, made: Json) -> Json:
        kept: Json = json.loads(json.dumps(made))
        kept["metadata"]["uid"] = f"uid-{len(self.things)}"
        kept["status"] = {"phase": "Running"} if made["kind"] == "Pod" else {}
        self.things[made["kind"], made["metadata"]["name"]] = kept
        return kept

    def find(self, kind: Kind, name: str) -> Json | None:
        return self.things.get((kind.kind, name))

    def get(self, kind: Kind, name: str) -> Json:
        found = self.find(kind, name)
        if found is None:
            raise AbsentError(f"there is no {kind.kind} {name}")
        return found

    def list(self, kind: Kind, labels: Mapping[str, str]) -> Sequence[Json]:
        things = [thing for (name, _), thing in self.things.items() if name == kind.kind]
        return [t for t in things if labels.items() <= (t["metadata"].get("labels") or {}).items()]

    def delete(self, kind: Kind, name: str, *, grace_s: int | None = None) -> bool:
        self.deleted.append(f"{kind.kind} {name}")
        return self.things.pop((kind.kind, name), None) is not None

    def log(self, pod: str, *, container: str | None = None) -> Iterator[str]:
        assert container == VOLUME_CONTAINER
        yield from self.logs.get(pod, [])

    def run(self, pod: str, command: Sequence[str], *, stdin: BinaryIO | None, stdout: BinaryIO | None) -> Ran:
        self.ran_in.append(pod)
        answer = self.answers.pop(0) if self.answers else (0, b"{}", "")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pods(self) -> Sequence[Json]:
        return [thing for (kind, _), thing in self.things.items() if kind == "Pod"]


@pytest.fixture
def memory() -> Memory:
    made = Memory()
    made.put(CLAIM, "reviews")
    return made


def test_a_volumes_pod_lives_for_a_day_outside_of_the_job() -> None:
    pod = volume_pod(PLACE, "ns", "volume-1", ["bireme"])
    assert pod["spec"]["activeDeadlineSeconds"] == LIFETIME_S == 24 * 3600
    labels = pod["metadata"]["labels"]
    assert (labels[naming.VOLUME_OF], labels[naming.COMPONENT]) == ("reviews", "volume")
    assert naming.INSTANCE not in labels


def test_a_volumes_pod_has_the_jobs_account_limits_and_patch() -> None:
    box = {"name": VOLUME_CONTAINER, "securityContext": {"runAsUser": None, "privileged": False}}
    patch = {
        "Pod": {"metadata": {"annotations": {"a": "b"}}, "spec": {"runtimeClassName": "kata", "containers": [box]}}
    }
    limits = ResourcesFile(limits={"cpu": "20m", "memory": "8Gi", "nvidia.com/gpu": 1})
    settings = KubernetesFile(service_account="trainers", resources=limits, patch=patch)
    pod = volume_pod(VolumePlace("reviews", "bireme:1", settings), "ns", "volume-1", ["bireme"])
    spec, (made,) = pod["spec"], pod["spec"]["containers"]
    assert (spec["serviceAccountName"], spec["runtimeClassName"]) == ("trainers", "kata")
    assert made["image"] == "bireme:1" and made["securityContext"]["privileged"] is False
    assert pod["metadata"]["annotations"] == {"a": "b"} and naming.VOLUME_OF in pod["metadata"]["labels"]
    assert made["resources"] == {
        "requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"cpu": "20m", "memory": "8Gi"},
    }  # fmt: skip


def test_a_pod_on_a_volume_asks_for_little_by_default() -> None:
    spec = volume_pod(PLACE, "ns", "volume-1", ["bireme"])["spec"]
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}}
    assert "serviceAccountName" not in spec


class Slow(Memory):
    """A cluster on which a pod is as this says, until it has been looked at so often, a second apart."""

    def __init__(self, *statuses: Json, last: Json | None = None) -> None:
        super().__init__()
        self.put(CLAIM, "reviews")
        self.statuses = list(statuses)
        self.last = last or {"phase": "Running"}
        self.now_s = 0.0
        self.said: list[str] = []

    def get(self, kind: Kind, name: str) -> Json:
        return {**super().get(kind, name), "status": self.statuses.pop(0) if self.statuses else self.last}

    def rest(self, _: float) -> None:
        self.now_s += 1.0
        assert self.now_s < 10_000, "the wait never ends"

    def start(self) -> None:
        pace = Pacing(lambda: self.now_s, self.rest)
        with VolumePod(self.as_cluster(), PLACE, self.said.append, pace) as pod:
            pod.run(["list", "/job"])


def pulling(message: str, reason: str = "ErrImagePull") -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


UNREACHED = pulling('Get "https://registry.local/v2/": dial tcp: i/o timeout')
NO_MACHINE = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}


def test_a_pod_that_waits_for_its_machine_is_shown_and_awaited() -> None:
    slow = Slow(*[NO_MACHINE] * 500)
    slow.start()
    (said,) = slow.said
    assert said.endswith(": 0/3 nodes") and said.startswith("reviews-volume-")


def test_a_pod_that_no_machine_takes_is_given_up_at_last() -> None:
    slow = Slow(last=NO_MACHINE)
    with pytest.raises(ClusterError, match="has waited for 600 s, and does not start: 0/3 nodes"):
        slow.start()
    assert START_S < slow.now_s < START_S + 5 and slow.pods() == []


def test_a_registry_that_does_not_answer_once_is_asked_again() -> None:
    Slow(*[UNREACHED] * 5, *[pulling("Back-off pulling image", "ImagePullBackOff")] * 30).start()


def test_a_registry_silent_for_a_minute_is_given_up() -> None:
    slow = Slow(*[NO_MACHINE] * 100, last=UNREACHED)
    with pytest.raises(ClusterError, match="does not start: ErrImagePull"):
        slow.start()
    assert 100 + PULL_S < slow.now_s < 100 + PULL_S + 5


@pytest.mark.parametrize("final", ["not found", "pull access denied, repository does not exist", "401 Unauthorized"])
def test_a_registrys_refusal_counts_at_any_length(final: str) -> None:
    slow = Slow(last=pulling(f"failed to pull and unpack image {'x' * 200}: {final}"))
    with pytest.raises(ClusterError, match="does not start: ErrImagePull"):
        slow.start()
    assert slow.now_s == 0.0 and slow.pods() == []


def test_a_pod_that_has_ended_is_replaced_at_the_next_command(memory: Memory) -> None:
    with VolumePod(memory.as_cluster(), PLACE) as pod:
        pod.run(["list", "/job"])
        memory.pods()[0]["status"] = {"phase": "Succeeded"}
        pod.run(["list", "/job"])
        memory.pods()[0]["metadata"]["deletionTimestamp"] = "now"
        pod.run(["list", "/job"])
    assert len(set(memory.ran_in)) == 3 and memory.pods() == []


def test_a_pods_end_under_a_command_is_a_retryable_reason(memory: Memory) -> None:
    over = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active longer than the deadline"}
    memory.answers = [(137, b"", "")]

    def learn(_: float) -> None:
        memory.pods()[0]["status"] = over

    with VolumePod(memory.as_cluster(), PLACE, pace=Pacing(rest=learn)) as pod:
        with pytest.raises(PodEndedError, match="DeadlineExceeded: Pod was active longer") as ended:
            pod.run(["put", "/job"])
        assert isinstance(ended.value, NetworkError), "transfers continue after such"
        assert "24 hours" in ended.value.why
        assert pod.run(["put", "/job"]) == b"{}"


def test_a_refused_command_is_an_end_only_where_the_pod_is_gone(memory: Memory) -> None:
    with VolumePod(memory.as_cluster(), PLACE) as pod:
        memory.answers = [ClusterError("refused")]
        with pytest.raises(ClusterError, match="refused"):
            pod.run(["list", "/job"])
        memory.answers = [ClusterError("pod not found")]
        found = memory.find
        calls = iter([found, lambda *_: None, lambda *_: None])
        memory.find = lambda *args: next(calls)(*args)  # type: ignore[method-assign]
        with pytest.raises(PodEndedError, match="it is gone"):
            pod.run(["list", "/job"])


def test_leaving_does_not_need_the_network(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any, **__: Any) -> bool:
        raise NetworkError("cannot reach the API server")

    with VolumePod(memory.as_cluster(), PLACE) as pod:
        assert pod.run(["list", "/job"]) == b"{}"
        monkeypatch.setattr(memory, "delete", lost)


def test_pods_of_a_split_are_not_swept_away(memory: Memory) -> None:
    for suffix in ("split", "volume-old"):
        memory.create(volume_pod(PLACE, "ns", suffix, ["bireme"]))["status"] = {"phase": "Succeeded"}
    with VolumePod(memory.as_cluster(), PLACE):
        pass
    assert [pod["metadata"]["name"] for pod in memory.pods()] == ["reviews-split"]


def test_an_error_in_the_pod_is_the_same_error_here() -> None:
    line = json.dumps({"error": "DataError", "what": "torn", "why": "w", "fix": "f"})
    found = command_error(f"a warning\n{line}\n", 5)
    assert isinstance(found, DataError) and (found.what, found.fix) == ("on the volume: torn", "f")
    assert "exit code 1: no such command" in command_error("no such command", 1).what


@pytest.mark.parametrize("name", ["annotations", "Nobody", "__name__", None, "BaseException"])
def test_only_errors_of_ours_are_taken_from_others(name: object) -> None:
    assert error_class(name, ClusterError) is ClusterError
    assert error_class("UsageError", ClusterError) is UsageError
