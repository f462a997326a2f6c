"""The demo's own job, sent to a cluster as the README says: the same bits as on this machine."""

from __future__ import annotations

import pytest

from tests.kube.stage import There, hash_there, local_hash


@pytest.mark.slow  # test_submit does the same with a smaller job
def test_the_demo_ends_on_a_cluster_with_the_same_bits_as_here(there: There) -> None:
    folder = there.home / "first-job"
    assert there.run("demo", "--prepare", folder).code == 0
    job = folder / "job.yaml"
    there.do("data", "push", job, "--image", there.image)
    ended = there.ask("submit", job, "--image", there.image, "--wait")
    assert (ended["state"], len(ended["passes_done"]), len(ended["trainers"])) == ("finished", 10, 3)
    assert [closed["samples"] for closed in ended["passes_done"]] == [24_000] * 10
    assert hash_there(there, "quick-start", 10) == local_hash(there, job)
