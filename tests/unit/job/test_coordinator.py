"""The coordinator decides without I/O, so each story here is a few calls and the effects that follow."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from bireme.job import messages as m
from bireme.job.coordinator import Coordinator
from bireme.job.effects import Effect, Leave, RefuseJoin, Send, SetUpPservers, Write
from bireme.ps.rounds import PassTotals, Totals
from bireme.ps.tree import Span
from bireme.spec.model import Optimizer, Parameter, Updates, Wire

FACTS = m.Facts(
    name="demo",
    program="config.py",
    fingerprint="f",
    parameters=(Parameter(name="w", shape=(4,)),),
    optimizer=Optimizer(),
    batch_size=10,
    evals=("error",),
    shards=3,
    trainers=2,
    passes=2,
    seed=1,
    pservers=(m.Address(host="a", ports=(1,)), m.Address(host="b", ports=(2,))),
    dense_lanes=1,
    sparse_lanes=1,
    output="/out",
)


def join(rank: int, **changes: object) -> m.Join:
    return m.Join(trainer=rank, pid=100 + rank, host="h", facts=msgspec.structs.replace(FACTS, **changes))


def gathered() -> Coordinator:
    machine = Coordinator(2)
    assert machine.joined(11, join(1), 1.0) == []
    machine.joined(10, join(0), 2.0)
    return machine


def training() -> Coordinator:
    machine = gathered()
    machine.pservers_ready(3.0)
    return machine


def pass_done(rank: int, pass_id: int = 0, test: m.Sum | None = None) -> m.PassDone:
    shards = {0: (0, 1), 1: (2,)}[rank]
    counts = {s: 10 + s for s in shards}
    return m.PassDone(trainer=rank, pass_id=pass_id, round=5, read=counts, trained=counts, test=test)


def progress(rank: int) -> m.Progress:
    return m.Progress(trainer=rank, pass_id=0, batch=3, batches=9, samples=20, cost=10.0, evals=(5.0,), rate=7.0)


def totals(pass_id: int = 0, samples: int = 33, staleness: dict[int, int] | None = None) -> PassTotals:
    shards = {s: Totals(10 + s, 2.0 * (10 + s), [float(s), 0.0, 0.0]) for s in (2, 0, 1)}
    return PassTotals(pass_id, samples, shards, staleness or {})


def close_pass(machine: Coordinator, pass_id: int) -> list[Effect]:
    machine.lane_passed(totals(pass_id, 33 * (pass_id + 1)), 4.0)
    machine.pass_done(11, pass_done(1, pass_id), 5.0)
    return machine.pass_done(10, pass_done(0, pass_id), 6.0)


def refusal(effects: list[Effect]) -> RefuseJoin:
    (effect,) = effects
    assert isinstance(effect, RefuseJoin)
    return effect


def sent(effects: list[Effect]) -> list[tuple[int, m.Message]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send)]


def test_pservers_are_set_up_when_the_last_trainer_has_joined() -> None:
    machine = Coordinator(2)
    assert machine.joined(11, join(1), 1.0) == []
    (effect,) = machine.joined(10, join(0), 2.0)
    assert isinstance(effect, SetUpPservers)
    assert effect.addresses == FACTS.pservers
    assert [s.pserver for s in effect.setups] == [0, 1]
    assert {s.shares for s in effect.setups} == {(Span(0, 2), Span(2, 3))}
    assert {(s.job, s.view) for s in effect.setups} == {(machine.job_id, machine.view)}
    assert machine.phase == "setting-up"


def test_pservers_are_told_how_to_update_and_how_gradients_are_written() -> None:
    machine, asked = Coordinator(1), {"updates": Updates(mode="bounded", staleness=2), "wire": Wire(gradients="top_k")}
    (effect,) = machine.joined(10, join(0, trainers=1, sparse_lanes=3, **asked), 1.0)
    assert isinstance(effect, SetUpPservers)
    told = [(s.dense_lanes, s.sparse_lanes, s.updates, s.wire) for s in effect.setups]
    assert told == [(1, 3, asked["updates"], asked["wire"])] * 2


def test_training_begins_only_when_all_pservers_are_ready() -> None:
    machine = gathered()
    begin = m.Begin(job=machine.job_id, view=machine.view, shares=(Span(0, 2), Span(2, 3)))
    assert sorted(sent(machine.pservers_ready(3.0))) == [(10, begin), (11, begin)]
    assert machine.phase == "training"
    assert machine.pservers_ready(4.0) == []


def test_pservers_that_are_ready_before_anybody_asked_begin_nothing() -> None:
    machine = Coordinator(2)
    assert machine.pservers_ready(1.0) == []
    assert machine.phase == "gathering"


@pytest.mark.parametrize("rank", [2, 7, -1])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    told = refusal(Coordinator(2).joined(12, join(rank), 1.0))
    assert told.reason == f"trainer_id {rank}, but this job has trainers 0 to 1"
    assert told.to == 12


def test_a_rank_that_joined_already_is_refused() -> None:
    machine = Coordinator(2)
    machine.joined(11, join(1), 1.0)
    told = refusal(machine.joined(12, join(1), 1.0))
    assert told.reason == "trainer 1 has joined already"
    assert "--trainer_id" in told.fix
    assert machine.joined(10, join(0), 1.0) != []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 2}, "`seed` is 2 there and 1 with the others"),
        ({"batch_size": 20}, "`batch_size` is 20 there and 10 with the others"),
        ({"program": "other.py"}, "`program` is 'other.py' there"),
        ({"shards": 4}, "`shards` is 4 there and 3"),
        ({"parameters": (Parameter(name="w", shape=(5,)),)}, "`parameters` is"),
        ({"optimizer": Optimizer(method="adam")}, "`optimizer` is"),
        ({"dense_lanes": 2}, "`dense_lanes` is 2 there"),
        ({"sparse_lanes": 0}, "`sparse_lanes` is 0 there and 1"),
        ({"updates": Updates(mode="async")}, "`updates` is"),
        ({"wire": Wire(gradients="float16")}, "`wire` is"),
        ({"trainers": 3}, "it counts 3 trainers, pserver 0 counts 2"),
    ],
)
def test_facts_that_differ_are_refused_by_the_name_of_the_field(change: dict[str, object], told: str) -> None:
    machine = Coordinator(2)
    machine.joined(10, join(0), 1.0)
    found = refusal(machine.joined(11, join(1, **change), 1.0))
    assert found.reason.startswith("trainer 1 runs another job: ")
    assert told in found.reason
    assert machine.phase == "gathering"


def test_only_trainer_0_has_a_say_in_where_models_go() -> None:
    machine = Coordinator(2)
    machine.joined(11, join(1, output="", start_samples=0), 1.0)
    (effect,) = machine.joined(10, join(0, output="/out", start_samples=70), 1.0)
    assert isinstance(effect, SetUpPservers)
    assert machine.facts is not None
    assert machine.facts.output == "/out"
    assert {s.start_samples for s in effect.setups} == {70}
    told = [message for _, message in sent(machine.pservers_ready(2.0))]
    assert [(b.start_samples, len(b.shares)) for b in told if isinstance(b, m.Begin)] == [(70, 2)] * 2


def test_trainers_started_by_hand_take_the_count_from_the_pserver() -> None:
    machine = Coordinator(2)
    machine.joined(10, join(0, trainers=0, shards=0), 1.0)
    (effect,) = machine.joined(11, join(1, trainers=0, shards=0), 1.0)
    assert isinstance(effect, SetUpPservers)
    assert effect.setups[0].shards == 2
    assert effect.setups[0].shares == (Span(0, 1), Span(1, 2))


def test_facts_with_fewer_shards_than_trainers_are_refused_as_such() -> None:
    machine = Coordinator(2)
    effects = [*machine.joined(10, join(0, shards=1), 1.0), *machine.joined(11, join(1, shards=1), 1.0)]
    reasons = [e.reason for e in effects if isinstance(e, RefuseJoin | Leave)]
    assert any("2 trainers but only 1 data shards" in reason for reason in reasons)


def test_nobody_can_join_once_the_job_has_begun() -> None:
    told = refusal(training().joined(12, join(0), 9.0))
    assert told.reason == "the job is training: nobody can join now"


def test_a_trainer_lost_while_gathering_may_join_again() -> None:
    machine = Coordinator(2)
    machine.joined(11, join(1), 1.0)
    assert machine.lost(11) == []
    assert machine.facts is None
    assert machine.joined(12, join(1, seed=5), 1.0) == []
    assert machine.status(1.0)["trainers_missing"] == [0]


def test_frames_of_two_incarnations_cannot_mix() -> None:
    first, second = gathered(), Coordinator(2, incarnation=2)
    second.joined(11, join(1), 1.0)
    second.joined(10, join(0), 1.0)
    assert first.view < second.view
    assert first.job_id != second.job_id


@pytest.mark.parametrize("order", ["lane first", "lane last", "lane between"])
def test_a_pass_closes_when_the_lane_and_all_trainers_have_reported(order: str) -> None:
    machine = training()
    steps: list[Callable[[], list[Effect]]] = [
        lambda: machine.pass_done(10, pass_done(0), 5.0),
        lambda: machine.pass_done(11, pass_done(1), 5.0),
    ]
    at = {"lane first": 0, "lane between": 1, "lane last": 2}[order]
    steps.insert(at, lambda: machine.lane_passed(totals(), 5.0))
    effects = [step() for step in steps]
    assert effects[:2] == [[], []]
    ((to, closed),) = sent(effects[2])
    assert to == 10
    assert isinstance(closed, m.PassClosed)
    assert (closed.pass_id, closed.round, closed.samples, closed.samples_so_far) == (0, 5, 33, 33)
    assert closed.cost == 2.0
    assert closed.evals == {"error": 3.0 / 33}
    assert closed.seconds == 2.0


def test_a_pass_is_in_the_ledger_once_its_model_is_saved_with_one_row_per_shard() -> None:
    machine = training()
    effects = close_pass(machine, 0)
    assert not [e for e in effects if isinstance(e, Write) and e.file == "ledger.jsonl"]
    effects += machine.model_saved(10, m.Saved(trainer=0, pass_id=0, path="p"))
    rows = [e.line for e in effects if isinstance(e, Write) and e.file == "ledger.jsonl"]
    assert rows == [{"pass": 0, "shard": s, "read": 10 + s, "trained": 10 + s, "applied": 10 + s} for s in range(3)]
    (metric,) = [e.line for e in effects if isinstance(e, Write) and e.file == "metrics.jsonl"]
    assert (metric["event"], metric["pass_id"], metric["samples"]) == ("pass", 0, 33)


def test_the_test_result_of_whoever_tested_is_in_the_closed_pass() -> None:
    machine = training()
    machine.lane_passed(totals(), 4.0)
    machine.pass_done(11, pass_done(1), 4.0)
    effects = machine.pass_done(10, pass_done(0, test=m.Sum(samples=4, cost=8.0, evals={"error": 1.0})), 4.0)
    ((_, closed),) = sent(effects)
    assert isinstance(closed, m.PassClosed)
    assert (closed.test_samples, closed.test_cost, closed.test_evals) == (4, 2.0, {"error": 0.25})


def test_staleness_and_the_worst_error_of_any_trainer_are_in_the_closed_pass() -> None:
    machine = training()
    machine.lane_passed(totals(staleness={1: 4, 0: 9}), 4.0)
    machine.pass_done(11, msgspec.structs.replace(pass_done(1), wire_error=0.25), 4.0)
    ((_, closed),) = sent(machine.pass_done(10, msgspec.structs.replace(pass_done(0), wire_error=0.125), 4.0))
    assert isinstance(closed, m.PassClosed)
    assert (list(closed.staleness.items()), closed.wire_error) == ([("0", 9), ("1", 4)], 0.25)


def test_a_repeated_report_closes_nothing_twice() -> None:
    machine = training()
    close_pass(machine, 0)
    assert machine.pass_done(10, pass_done(0), 7.0) == []
    assert len(machine.closed) == 1


def test_the_saved_model_of_the_last_pass_ends_the_job() -> None:
    machine = training()
    close_pass(machine, 0)
    assert not sent(machine.model_saved(10, m.Saved(trainer=0, pass_id=0, path="p")))
    close_pass(machine, 1)
    effects = machine.model_saved(10, m.Saved(trainer=0, pass_id=1, path="p"))
    stop = m.Stop(reason="all passes done", how="finished")
    assert sorted(sent(effects)) == [(10, stop), (11, stop)]
    assert effects[-1] == Leave("all passes done", "finished")
    assert (machine.phase, machine.saved) == ("finished", 1)


def test_a_resumed_job_ends_after_its_own_passes() -> None:
    machine = Coordinator(1)
    machine.joined(10, join(0, trainers=1, start_pass=4, passes=2), 1.0)
    machine.pservers_ready(1.0)
    for pass_id, is_over in ((4, False), (5, True)):
        machine.lane_passed(totals(pass_id), 4.0)
        machine.pass_done(10, pass_done(0, pass_id), 5.0)
        machine.model_saved(10, m.Saved(trainer=0, pass_id=pass_id, path="p"))
        assert (machine.phase == "finished") == is_over


@pytest.mark.parametrize("make", [gathered, training])
def test_a_lost_trainer_fails_the_job(make: Callable[[], Coordinator]) -> None:
    machine = make()
    effects = machine.lost(11)
    assert effects[-1] == Leave("trainer 1 went away", how="failed")
    assert {to for to, _ in sent(effects)} == {10, 11}
    assert machine.phase == "failed"
    assert machine.lost(10) == []


def test_a_lost_visitor_matters_to_nobody() -> None:
    assert training().lost(99) == []


def test_a_failure_stops_everybody_with_its_reason_once() -> None:
    machine = training()
    effects = machine.failed("trainer 1: a NaN")
    assert effects[-1] == Leave("trainer 1: a NaN", how="failed")
    assert all(message == m.Stop(reason="trainer 1: a NaN", how="failed") for _, message in sent(effects))
    assert machine.failed("again") == []
    assert machine.status(9.0)["reason"] == "trainer 1: a NaN"


@pytest.mark.parametrize("make", [lambda: Coordinator(2), gathered, training])
def test_a_cancelled_job_is_no_failure(make: Callable[[], Coordinator]) -> None:
    machine = make()
    effects = machine.cancelled()
    assert effects[-1] == Leave("stopped on request", "cancelled")
    assert machine.phase == "cancelled"
    assert machine.cancelled() == []


def test_progress_is_written_as_means_and_shown_in_the_status() -> None:
    machine = training()
    (effect,) = machine.progressed(11, progress(1), 5.0)
    assert isinstance(effect, Write)
    assert (effect.line["cost"], effect.line["t"], effect.line["trainer"]) == (0.5, 3.0, 1)
    status = machine.status(6.0)
    assert (status["phase"], status["seconds"], status["trainers_missing"]) == ("training", 4.0, [])
    trainers = status["trainers"]
    assert isinstance(trainers, list)
    assert trainers[1]["evals"] == [0.25]


@pytest.mark.parametrize(("connection", "rank"), [(99, 1), (10, 1), (10, 9)])
def test_what_is_said_on_another_connection_than_the_members_own_is_ignored(connection: int, rank: int) -> None:
    machine = training()
    before = machine.status(5.0)
    assert machine.progressed(connection, progress(rank), 5.0) == []
    done = m.PassDone(trainer=rank, pass_id=0, round=1, read={}, trained={})
    assert machine.pass_done(connection, done, 5.0) == []
    assert machine.trainer_failed(connection, m.Failed(trainer=rank, what="a lie")) == []
    assert machine.status(5.0) == before


def test_only_trainer_0_can_say_that_a_closed_pass_is_saved() -> None:
    machine = training()
    assert machine.model_saved(10, m.Saved(trainer=0, pass_id=1, path="p")) == []
    close_pass(machine, 0)
    assert machine.model_saved(11, m.Saved(trainer=1, pass_id=0, path="p")) == []
    assert machine.saved == -1


def test_a_pass_without_a_sample_fails_the_job_by_the_coordinators_own_word() -> None:
    machine = training()
    machine.pass_done(11, pass_done(1), 5.0)
    machine.pass_done(10, pass_done(0), 5.0)
    effects = machine.lane_passed(PassTotals(0, 0, {s: Totals() for s in range(3)}, {}), 5.0)
    assert effects[-1] == Leave("there is not one training sample in all shards", "failed", is_own=True)
