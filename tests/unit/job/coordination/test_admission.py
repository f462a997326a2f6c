"""Who may join a job, and the messages with which it begins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.job.story import CUTS, Story, manifest, messages_of, only

from bireme.job.coordination import messages as m
from bireme.job.coordination.effects import Base, HangUp, RefuseJoin
from bireme.ps.tree import Span
from bireme.spec.model import Optimizer, Parameter, Updates, Wire


def test_pservers_are_set_up_with_what_was_loaded() -> None:
    often = msgspec.structs.replace(CUTS, every_rounds=7)
    story = Story(snapshots=often, updates=Updates(mode="bounded", staleness=2), wire=Wire(gradients="top_k"))
    story.gather()
    setups = [message.setup for message in messages_of(m.SetUp, story.load(Base(manifest(9), (("a", "b"),)))).values()]
    assert [s.pserver for s in setups] == [0, 1]
    assert {(s.job, s.view, s.shares) for s in setups} == {
        (story.machine.job_id, story.machine.view, (Span(0, 2), Span(2, 3)))
    }
    assert [s.facts for s in setups] == [story.facts] * 2
    assert {s.base for s in setups} == {(("a", "b"),)}


@pytest.mark.parametrize(("base", "wants_values"), [(Base(None, ()), True), (Base(manifest(9), (("a",),)), False)])
def test_a_saved_model_is_loaded_only_without_a_later_snapshot(base: Base, wants_values: bool) -> None:
    story = Story(is_set_by_trainer=True)
    story.gather()
    assert [s.setup.is_set_by_trainer for s in messages_of(m.SetUp, story.load(base)).values()] == [wants_values] * 2
    assert [b.wants_values for b in messages_of(m.Begin, story.ready()).values()] == [wants_values] * 2


@pytest.mark.parametrize("rank", [2, 7, -1])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    assert Story().join(rank, connection=12) == [
        RefuseJoin(
            12,
            f"trainer_id {rank}, but this job has trainers 0 to 1",
            f"start pserver 0 with --num_gradient_servers={rank + 1}, or use a smaller --trainer_id",
        )
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2}, "`seed` is 2 there and 1 with the others"),
        ({"batch_size": 20}, "`batch_size` is 20 there and 10 with the others"),
        ({"fingerprint": "other"}, "its config, or a file that the config reads such as dict.txt, is not that"),
        ({"program": "other.py"}, "`program` is 'other.py' there"),
        ({"shards": 4}, "`shards` is 4 there and 3"),
        ({"parameters": (Parameter(name="w", shape=(5,)),)}, "`parameters` is"),
        ({"optimizer": Optimizer(method="adam")}, "`optimizer` is"),
        ({"ports_num": 2}, "`ports_num` is 2 there"),
        ({"pservers": 3}, "`pservers` is 3 there and 2"),
        ({"updates": Updates(mode="async")}, "`updates` is"),
        ({"wire": Wire(gradients="float16")}, "`wire` is"),
        ({"data_fingerprint": "d"}, "`data_fingerprint` is 'd' there"),
        ({"trainers": 3}, "it counts 3 trainers, pserver 0 counts 2"),
    ],
)
def test_facts_that_differ_are_refused_by_the_name_of_the_field(change: dict[str, Any], words: str) -> None:
    story = Story()
    story.join(0)
    refusal = only(RefuseJoin, story.join(1, **change))
    assert refusal.reason.startswith("trainer 1 runs another job: ")
    assert words in refusal.reason
    assert story.machine.missing() == ["trainer 1", "pserver 0", "pserver 1"]


def test_another_program_points_at_the_shards_files() -> None:
    story = Story()
    story.join(0)
    assert "`bireme data check DIR`" in only(RefuseJoin, story.join(1, fingerprint="other")).fix
    assert "data check" not in only(RefuseJoin, story.join(1, batch_size=20)).fix


def test_only_trainer_0_has_a_say_in_where_models_go() -> None:
    story = Story(trainers=2)
    story.join(1, output="", start_samples=0)
    story.join(0, output="/out", start_samples=70)
    story.reach(0)
    story.reach(1)
    assert {s.setup.facts.start_samples for s in messages_of(m.SetUp, story.load()).values()} == {70}
    assert {b.start_samples for b in messages_of(m.Begin, story.ready()).values()} == {70}
    assert story.machine.facts is not None and story.machine.facts.output == "/out"


def test_trainers_by_hand_take_the_count_from_the_pserver() -> None:
    story = Story()
    for rank in range(2):
        story.join(rank, incarnation=0, trainers=0, shards=0)
        story.reach(rank)
    setups = [message.setup for message in messages_of(m.SetUp, story.load()).values()]
    assert [(s.facts.shards, s.shares) for s in setups] == [(2, (Span(0, 1), Span(1, 2)))] * 2


def test_facts_with_fewer_shards_than_trainers_are_refused() -> None:
    assert only(RefuseJoin, Story(shards=1).join(0)).reason == "2 trainers but only 1 data shards"


def test_a_trainer_lost_before_the_start_may_run_another_job() -> None:
    story = Story()
    story.join(1)
    story.lose(11)
    assert story.machine.facts is None
    assert not [e for e in story.join(1, connection=12, seed=5) if isinstance(e, RefuseJoin)]


@pytest.mark.parametrize("incarnation", [0, 2], ids=["by hand", "a predecessor"])
def test_one_trainer_too_many_is_refused_without_effect(incarnation: int) -> None:
    story = Story()
    for rank in range(2):
        story.join(rank, incarnation=3)
        story.reach(rank)
    story.load()
    story.ready()
    refusal = only(RefuseJoin, story.join(1, connection=12, incarnation=incarnation))
    assert (refusal.to, refusal.reason) == (12, "trainer 1 has joined already")
    assert "--trainer_id" in refusal.fix
    assert story.machine.phase == "training"
    assert story.machine.members.trainers[1].connection == 11


@pytest.mark.parametrize("incarnation", [0, 3], ids=["by hand", "supervised"])
def test_a_process_may_join_again_after_a_lost_connection(incarnation: int) -> None:
    story = Story()
    for rank in range(2):
        story.join(rank, incarnation=incarnation)
        story.reach(rank)
    story.load()
    story.ready()
    effects = story.join(1, connection=12, incarnation=incarnation)
    assert only(HangUp, effects).to == 11
    assert story.machine.members.trainers[1].connection == 12
