"""The pod on a volume: how it looks, that it is replaced when it has ended, and what is said of its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import pytest

from bireme.core.errors import ClusterError, DataError, NetworkError, UsageError
from bireme.kube import naming
from bireme.kube.client import CLAIM, AbsentError, Cluster, Kind
from bireme.kube.volume import LIFETIME_S, Place, PodEndedError, VolumePod, error_class, told_error, volume_pod
from bireme.spec.kubernetes import KubernetesFile

Json = dict[str, Any]
Ran = tuple[int, bytes, str]
PLACE = Place("reviews", "bireme:1", KubernetesFile())


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

    def log(self, pod: str) -> Iterator[str]:
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


def test_a_pod_on_a_volume_lives_for_a_day_and_is_no_part_of_the_job() -> None:
    pod = volume_pod(PLACE, "ns", "volume-1", ["bireme"])
    assert pod["spec"]["activeDeadlineSeconds"] == LIFETIME_S == 24 * 3600
    labels = pod["metadata"]["labels"]
    assert (labels[naming.VOLUME_OF], labels[naming.COMPONENT]) == ("reviews", "volume")
    assert naming.INSTANCE not in labels


def test_a_pod_that_has_ended_is_replaced_at_the_next_command(memory: Memory) -> None:
    with VolumePod(memory.as_cluster(), PLACE) as pod:
        pod.run(["list", "/job"])
        memory.pods()[0]["status"] = {"phase": "Succeeded"}
        pod.run(["list", "/job"])
        memory.pods()[0]["metadata"]["deletionTimestamp"] = "now"
        pod.run(["list", "/job"])
    assert len(set(memory.ran_in)) == 3 and memory.pods() == []


def test_the_end_of_a_pod_under_a_command_is_told_with_its_reason_and_can_be_tried_again(memory: Memory) -> None:
    over = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active longer than the deadline"}
    memory.answers = [(137, b"", "")]

    def learn(_: float) -> None:
        memory.pods()[0]["status"] = over

    with VolumePod(memory.as_cluster(), PLACE, pause=learn) as pod:
        with pytest.raises(PodEndedError, match="DeadlineExceeded: Pod was active longer") as ended:
            pod.run(["put", "/job"])
        assert isinstance(ended.value, NetworkError), "transfers go on after such"
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
    told = json.dumps({"error": "DataError", "what": "torn", "why": "w", "fix": "f"})
    found = told_error(f"a warning\n{told}\n", 5)
    assert isinstance(found, DataError) and (found.what, found.fix) == ("on the volume: torn", "f")
    assert "exit code 1: no such command" in told_error("no such command", 1).what


@pytest.mark.parametrize("name", ["annotations", "Nobody", "__name__", None, "BaseException"])
def test_only_errors_of_ours_are_taken_from_others(name: object) -> None:
    assert error_class(name, ClusterError) is ClusterError
    assert error_class("UsageError", ClusterError) is UsageError
