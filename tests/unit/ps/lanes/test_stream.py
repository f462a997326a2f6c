from __future__ import annotations

import pytest

from bireme.ps.lanes.rounds import AnswerAt, Closing, Late, Refuse, Take, Totals, Wait
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Flag, Head, Kind, Record

NBYTES = 64


def lane(shards: int = 2, staleness: int | None = 1) -> LaneStream:
    return LaneStream(shards, NBYTES, job=7, view=3, staleness=staleness)


def push(shard: int, q: int = 0, pass_id: int = 0, nbytes: int = NBYTES) -> Head:
    return Head(Kind.PUSH, job=7, view=3, round=q, lo=shard, hi=shard + 1, nbytes=nbytes, records=1, extra=pass_id)


def pull(shard: int, q: int = 0, pass_id: int = 0, flags: Flag = Flag.NONE) -> Head:
    return Head(Kind.PULL, flags, job=7, view=3, round=q, lo=shard, hi=shard + 1, extra=pass_id)


def give(stream: LaneStream, shard: int, *, is_last: bool = False, samples: int = 5) -> dict[int, Totals] | None:
    """The shard's next push, all the way."""
    head = push(shard, stream.next_q[shard], stream.pass_id, NBYTES if samples else 0)
    assert stream.offer(head, [Record(shard, is_last, samples, 0.5)]) == Take(shard)
    assert stream.landed(Span(shard, shard + 1)) is not None
    return stream.close()


def reason(verdict: object) -> str:
    assert isinstance(verdict, Refuse)
    return verdict.reason


def test_a_push_is_applied_on_arrival_without_waiting_for_others() -> None:
    stream = lane()
    assert stream.offer(push(1), [Record(1, False, 5)]) == Take(1)
    assert stream.landed(Span(1, 2)) == Closing(0, 0, 1, (), 5)
    assert stream.close() is None
    assert (stream.round, stream.samples, stream.next_q) == (1, 5, [0, 1])


def test_two_pushes_at_once_close_one_after_the_other() -> None:
    stream = lane()
    for shard in (0, 1):
        assert stream.offer(push(shard), [Record(shard, False, 5)]) == Take(shard)
    assert stream.landed(Span(1, 2)) == Closing(0, 0, 1, (), 5)
    assert stream.has_landed(Span(1, 2))
    assert not stream.has_landed(Span(0, 1))
    stream.close()
    assert stream.landed(Span(0, 1)) == Closing(1, 0, 0, (), 10)
    stream.close()
    assert stream.next_q == [1, 1]


def test_landing_twice_without_closing_is_a_bug() -> None:
    stream = lane()
    for shard in (0, 1):
        stream.offer(push(shard), [Record(shard, False, 5)])
    stream.landed(Span(0, 1))
    with pytest.raises(AssertionError, match="this is a bug"):
        stream.landed(Span(1, 2))


def test_closing_without_a_landing_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        lane().close()


def test_a_push_that_was_applied_is_answered_and_counts_nothing() -> None:
    stream = lane()
    give(stream, 0)
    assert stream.offer(push(0), [Record(0, False, 5)]) == Late()
    assert (stream.round, stream.samples) == (1, 5)


def test_a_push_of_an_earlier_pass_is_answered_not_counted() -> None:
    stream = lane(shards=1)
    give(stream, 0, is_last=True)
    assert stream.offer(push(0, 9), [Record(0, False, 5)]) == Late()


def test_a_push_ahead_of_its_turn_is_refused_with_the_turn() -> None:
    verdict = lane().offer(push(0, 1), [Record(0, False, 5)])
    assert reason(verdict) == "batch 1 of pass 0 is ahead: the lane expects batch 0 of pass 0 from shard 0"
    assert "is ahead" in reason(lane().offer(push(0, 0, pass_id=1), [Record(0, False, 5)]))


def test_a_push_that_is_being_received_belongs_to_one_connection() -> None:
    stream = lane()
    stream.offer(push(0), [Record(0, False, 5)])
    verdict = stream.offer(push(0), [Record(0, False, 5)])
    assert reason(verdict) == "shard 0 is being received on another connection"


def test_a_push_whose_payload_never_came_can_be_sent_again() -> None:
    stream = lane()
    stream.offer(push(0), [Record(0, False, 5)])
    stream.dropped(Span(0, 1))
    assert stream.offer(push(0), [Record(0, False, 5)]) == Take(0)


def test_a_push_without_a_pull_is_refused_past_the_bound() -> None:
    stream = lane(staleness=0)
    give(stream, 0)
    assert reason(stream.offer(push(0, 1), [Record(0, False, 5)])).endswith("more than 0: pull first")


def test_strangers_are_refused() -> None:
    stream = lane()
    records = [Record(0, False, 5)]
    assert "serves job" in reason(stream.offer(push(0)._replace(job=8), records))
    assert "not the current view" in reason(stream.offer(push(0)._replace(view=2), records))
    assert "not one shard" in reason(stream.offer(push(0)._replace(hi=2), records))
    assert "not one shard" in reason(stream.offer(push(2), records))
    assert "60 bytes" in reason(stream.offer(push(0, nbytes=60), records))
    assert "in a push of shard 0" in reason(stream.offer(push(0), [Record(1, False, 5)]))
    assert "in a push of shard 0" in reason(stream.offer(push(0), []))
    assert "5 samples with a payload of 0" in reason(stream.offer(push(0, nbytes=0), records))
    assert "never end the pass" in reason(stream.offer(push(0, nbytes=0), [Record(0, False, 0)]))
    assert "serves job" in reason(stream.look(pull(0)._replace(job=8)))
    assert reason(stream.look(pull(2))) == "there is no shard 2 among 2"


def test_only_single_shards_have_a_row() -> None:
    stream = lane()
    assert [stream.row_of(span) for span in stream.spans] == [0, 1]
    assert stream.row_of(Span(0, 2)) is None
    assert stream.row_of(Span(2, 3)) is None


def test_an_empty_shard_ends_without_an_update() -> None:
    stream = lane()
    stream.offer(push(1, nbytes=0), [Record(1, True, 0)])
    assert stream.landed(Span(1, 2)) == Closing(0, 0, None, (), 0)
    stream.close()
    assert stream.ended == {1}


def test_the_last_push_of_a_pass_is_known_before_it_is_applied() -> None:
    stream = lane()
    give(stream, 1, is_last=True)
    for batch, is_last in enumerate([False, True]):
        stream.offer(push(0, batch), [Record(0, is_last, 5)])
        closing = stream.landed(Span(0, 1))
        assert closing is not None and closing.ends_pass == is_last
        stream.close()


def test_the_pass_ends_when_every_shard_has() -> None:
    stream = lane()
    assert give(stream, 0, is_last=True) is None
    assert "already ended" in reason(stream.offer(push(0, 1), [Record(0, False, 5)]))
    give(stream, 1)
    done = give(stream, 1, is_last=True)
    assert done == {0: Totals(5, 0.5), 1: Totals(10, 1.0)}
    assert (stream.pass_id, stream.next_q, stream.ended, stream.round) == (1, [0, 0], set(), 3)


def test_counting_continues_from_an_earlier_run() -> None:
    stream = lane()
    stream.start_at(4, 100)
    assert stream.offer(push(0, pass_id=4), [Record(0, False, 5)]) == Take(0)
    assert stream.landed(Span(0, 1)) == Closing(0, 4, 0, (), 105)


def test_a_pull_waits_while_its_shard_is_too_far_ahead() -> None:
    stream = lane(staleness=1)
    give(stream, 0)
    assert stream.look(pull(0, 1)) == AnswerAt(1, 0, 1)
    give(stream, 0)
    assert stream.look(pull(0, 2)) == Wait()
    give(stream, 1)
    assert stream.look(pull(0, 2)) == AnswerAt(3, 0, 2)


def test_no_trainer_waits_for_a_shard_that_has_ended() -> None:
    stream = lane(staleness=0)
    give(stream, 0)
    assert stream.look(pull(0, 1)) == Wait()
    give(stream, 1, is_last=True)
    assert stream.look(pull(0, 1)) == AnswerAt(2, 0, 1)


def test_without_a_bound_none_waits_but_staleness_is_measured() -> None:
    stream = lane(staleness=None)
    for q in range(3):
        assert stream.look(pull(0, q)) == AnswerAt(q, 0, q)
        give(stream, 0)
    give(stream, 1)
    assert stream.staleness_counts == {0: 2, 1: 1, 2: 1}
    assert stream.take_staleness() == {0: 2, 1: 1, 2: 1}
    assert stream.take_staleness() == {}


def test_a_pull_waits_for_its_own_push() -> None:
    stream = lane()
    assert stream.look(pull(0, 1)) == Wait()
    assert "far ahead" in reason(stream.look(pull(0, 2)))


def test_a_shard_that_has_ended_may_wait_for_the_next_pass_only() -> None:
    stream = lane()
    give(stream, 0, is_last=True)
    assert "already ended" in reason(stream.look(pull(0, 1)))
    assert stream.look(pull(0, 0, pass_id=1)) == Wait()
    assert "far ahead" in reason(stream.look(pull(0, 1, pass_id=1)))
    assert "far ahead" in reason(stream.look(pull(0, 0, pass_id=2)))


def test_a_pull_for_an_applied_batch_gets_what_is_current() -> None:
    stream = lane(staleness=0)
    give(stream, 0)
    assert stream.look(pull(0, 1)) == Wait()
    assert stream.look(pull(0, 0)) == AnswerAt(1, 0, 1), "another lane may lack its push, so it is computed once more"


def test_a_pull_of_an_earlier_pass_gets_what_is_current() -> None:
    stream = lane(shards=1)
    give(stream, 0, is_last=True)
    assert stream.look(pull(0, 1)) == AnswerAt(1, 1, 0)


def test_a_new_view_keeps_what_counted_and_drops_the_rest() -> None:
    stream = lane()
    give(stream, 0)
    stream.offer(push(1), [Record(1, False, 5)])
    stream.enter(4)
    assert (stream.round, stream.next_q) == (1, [1, 0])
    assert stream.offer(push(1), [Record(1, False, 5)]) == Refuse("view 3 is not the current view 4", is_stale=True)
    assert stream.offer(push(1)._replace(view=4), [Record(1, False, 5)]) == Take(1)


def test_a_pull_now_is_answered_past_any_bound() -> None:
    stream = lane(staleness=0)
    give(stream, 0)
    assert stream.look(pull(0, 99, flags=Flag.NOW)) == AnswerAt(1, 0, 1)


def test_a_pull_at_a_pass_waits_until_it_begins() -> None:
    stream = lane(shards=1)
    assert stream.look(pull(0, 1, flags=Flag.AT_PASS)) == Wait()
    assert "far ahead" in reason(stream.look(pull(0, 2, flags=Flag.AT_PASS)))
    give(stream, 0, is_last=True)
    give(stream, 0)
    assert stream.look(pull(0, 1, flags=Flag.AT_PASS)) == AnswerAt(2, 1, 1)
    assert "gone" in reason(stream.look(pull(0, 0, flags=Flag.AT_PASS)))
