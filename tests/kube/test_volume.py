"""Data to a job's volume and back, through the API server."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from bireme.kube.volume.pod_end import prefix_digest
from tests.e2e.conftest import wait_until
from tests.kube.stage import There, small_job


def test_what_is_pushed_is_there_and_is_not_pushed_again(there: There, reviews: Path) -> None:
    job = small_job(there, reviews)
    first = there.ask("data", "push", job)
    assert first["skipped"] == 0 and first["nbytes"] > 10_000 and first["to"] == "/job/small"
    again = there.ask("data", "push", job)
    assert (again["nbytes"], again["skipped"]) == (0, first["files"])
    (job.parent / "0/data/train.txt").write_text("1\tother words\n")
    assert there.ask("data", "push", job)["skipped"] == first["files"] - 1
    assert there.pods() == [], "the pod on the volume is gone"


def test_a_transfer_that_is_killed_continues_where_it_was(there: There, reviews: Path) -> None:
    job = small_job(there, reviews)
    large = there.home / "large"
    large.mkdir()
    (large / "noise.bin").write_bytes(os.urandom(64 << 20))
    command = ("data", "push", job, "--from", large, "--to", "raw", "--namespace", there.namespace)
    pushing = there.start(*command)
    folder = raw_folder(there)

    def has_begun() -> bool:
        assert pushing.poll() is None, "it was to be killed on its way"
        with contextlib.suppress(FileNotFoundError):
            return (folder / ".noise.bin.bireme-part").stat().st_size > 4 << 20
        return False

    wait_until(has_begun, "some of it is there", 120)
    pushing.send_signal(signal.SIGKILL)
    pushing.communicate()
    done = there.ask("data", "push", job, "--from", large, "--to", "raw")
    assert done["resumed"] == 1 and 0 < done["nbytes"] < 64 << 20
    assert prefix_digest(folder / "noise.bin", 1 << 30) == prefix_digest(large / "noise.bin", 1 << 30)
    there.wait(lambda: len(there.pods()) <= 1, "only the pod of the killed command may be left")


def raw_folder(there: There) -> Path:
    """The job's folder `raw` on the host's side of its volume, once there is a volume.

    (Other tests make and remove folders on other volumes all the time: nothing that is there can be searched.)
    """
    path = f"/api/v1/namespaces/{there.namespace}/persistentvolumeclaims"

    def volumes() -> list[str]:
        claims = there.cluster.api.get(path)["items"]
        return [claim["spec"]["volumeName"] for claim in claims if claim["spec"].get("volumeName")]

    there.wait(volumes, "the claim is bound", 120)
    return there.cluster.volume / volumes()[0] / "small" / "raw"


def test_data_can_be_split_where_it_is(there: There, reviews: Path) -> None:
    job = small_job(there, reviews)
    text = job.read_text().replace("kubernetes:", "data: {path: cut, shards: 3}\nkubernetes:")
    job.write_text(text)
    there.do("data", "push", job, "--from", reviews, "--to", "raw")
    split = there.ask("data", "split", "raw", "--shards", "3", "--out", "cut", "--on-volume", job)
    assert (split["shards"], sum(split["lines"])) == (3, 601)
    refused = there.do("data", "split", "raw", "--shards", "3", "--out", "cut", "--on-volume", job, code=7)
    assert "already" in refused.err
    assert there.cluster.get("jobs", "-n", there.namespace)["items"] == []
    ended = there.ask("submit", job, "--wait")
    assert ended["state"] == "finished"


def test_a_volume_that_is_not_there_or_has_no_pod_is_reported(there: There, reviews: Path) -> None:
    assert "there is no job 'nobody'" in there.do("fetch", "nobody", there.home / "x", code=2).err
    job = small_job(there, reviews)
    job.write_text(job.read_text().replace(there.image, "localhost/none:1"))
    refused = there.do("data", "push", job, code=18)
    assert "does not start: " in refused.err and there.pods() == []
