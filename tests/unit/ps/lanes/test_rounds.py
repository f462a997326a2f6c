from __future__ import annotations

from bireme.ps.lanes.rounds import AnswerAt, Closing, LaneRounds, Late, Refuse, Repeat, Take, Wait
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Flag, Head, Kind, Record

LEFT, RIGHT = Span(0, 1), Span(1, 2)
NBYTES = 64


def lane(spans: tuple[Span, ...] = (LEFT, RIGHT)) -> LaneRounds:
    return LaneRounds(2, spans, NBYTES, job=7, view=3)


def push(span: Span, round_: int = 0, nbytes: int = NBYTES) -> Head:
    return Head(Kind.PUSH, job=7, view=3, round=round_, lo=span.lo, hi=span.hi, nbytes=nbytes)


def pull(round_: int = 0, flags: Flag = Flag.NONE) -> Head:
    return Head(Kind.PULL, flags, job=7, view=3, round=round_)


def give(rounds: LaneRounds, span: Span, *, is_last: bool = False, samples: int = 5) -> Closing | None:
    records = [Record(s, is_last, samples) for s in span.shards if s not in rounds.ended]
    verdict = rounds.offer(push(span, rounds.round, NBYTES if samples else 0), records)
    assert isinstance(verdict, Take)
    return rounds.landed(span)


def close_round(rounds: LaneRounds, *, is_last: bool = False) -> None:
    give(rounds, LEFT, is_last=is_last)
    assert give(rounds, RIGHT, is_last=is_last) is not None
    rounds.close()


def reason(verdict: object) -> str:
    assert isinstance(verdict, Refuse)
    return verdict.reason


def test_the_last_contribution_closes_the_round() -> None:
    rounds = lane()
    assert give(rounds, RIGHT) is None
    assert give(rounds, LEFT) == Closing(0, 0, 0, ((0, 1),), 10)


def test_a_late_push_counts_nothing_after_its_round_has_closed() -> None:
    rounds = lane()
    close_round(rounds)
    assert rounds.offer(push(LEFT, 0), [Record(0, False, 5)]) == Late()
    assert rounds.samples == 10


def test_a_late_push_of_another_length_is_refused_unread() -> None:
    rounds = lane()
    close_round(rounds)
    verdict = rounds.offer(push(LEFT, 0, nbytes=1 << 40), [Record(0, False, 5)])
    assert isinstance(verdict, Refuse)


def test_a_push_of_any_round_before_has_counted_already() -> None:
    rounds = lane()
    close_round(rounds)
    close_round(rounds)
    assert isinstance(rounds.offer(push(LEFT, 0), []), Late)


def test_a_push_ahead_of_its_time_is_refused() -> None:
    assert reason(lane().offer(push(LEFT, 1), [])) == "round 1 is ahead of round 0"


def test_a_repeat_is_compared_and_one_with_other_records_refused() -> None:
    rounds = lane()
    give(rounds, LEFT)
    assert rounds.offer(push(LEFT), [Record(0, False, 5)]) == Repeat(0)
    assert reason(rounds.offer(push(LEFT), [Record(0, False, 6)])) == "the repeat has other records"


def test_a_row_that_is_being_received_belongs_to_one_connection() -> None:
    rounds = lane()
    rounds.offer(push(LEFT), [Record(0, False, 5)])
    assert "being received on another connection" in reason(rounds.offer(push(LEFT), [Record(0, False, 5)]))
    rounds.dropped(LEFT)
    assert rounds.offer(push(LEFT), [Record(0, False, 5)]) == Take(0)


def test_another_job_and_another_view_are_named_in_the_refusal() -> None:
    rounds = lane()
    assert "the frame is of job 0000000000000008" in reason(rounds.offer(push(LEFT)._replace(job=8), []))
    assert reason(rounds.offer(push(LEFT)._replace(view=2), [])) == "view 2 is not the current view 3"


def test_a_span_without_an_owner_is_refused() -> None:
    assert "are no contribution of this view" in reason(lane().offer(push(Span(0, 2)), []))


def test_records_must_be_of_the_live_shards() -> None:
    rounds = lane()
    give(rounds, LEFT, is_last=True)
    give(rounds, RIGHT)
    rounds.close()
    refused = reason(rounds.offer(push(LEFT, 1), [Record(0, False, 5)]))
    assert refused == "records of shards [0], but [] are live in this pass"


def test_samples_and_payload_come_together_or_are_refused() -> None:
    rounds = lane()
    assert "5 samples with a payload of 0 bytes" in reason(rounds.offer(push(LEFT, nbytes=0), [Record(0, True, 5)]))
    assert "0 samples with a payload of 64 bytes" in reason(rounds.offer(push(LEFT), [Record(0, True, 0)]))
    assert "a payload of 60 bytes for a slice of 64" in reason(
        rounds.offer(push(LEFT, nbytes=60), [Record(0, True, 5)])
    )


def test_an_empty_contribution_must_end_its_shard() -> None:
    verdict = lane().offer(push(LEFT, nbytes=0), [Record(0, False, 0)])
    assert "would never end the pass" in reason(verdict)


def test_a_round_of_empty_shards_closes_with_nothing_to_apply() -> None:
    rounds = lane()
    give(rounds, LEFT, is_last=True, samples=0)
    assert give(rounds, RIGHT, is_last=True, samples=0) == Closing(0, 0, None, (), 0, ends_pass=True)


def test_an_ended_shard_is_not_waited_for() -> None:
    rounds = lane()
    give(rounds, LEFT, is_last=True)
    give(rounds, RIGHT)
    rounds.close()
    assert give(rounds, RIGHT, is_last=True) == Closing(1, 0, 1, (), 15, ends_pass=True)
    totals = rounds.close()
    assert totals is not None
    assert [totals[s].samples for s in (0, 1)] == [5, 10]


def test_a_lane_without_elements_counts_samples_without_payloads() -> None:
    rounds = LaneRounds(1, [LEFT], 0, job=7, view=3)
    assert rounds.offer(push(LEFT, nbytes=0), [Record(0, True, 4)]) == Take(0)
    closing = rounds.landed(LEFT)
    assert closing is not None
    assert (closing.root, closing.samples) == (0, 4)


def test_a_resumed_job_counts_on_from_its_pass_and_samples() -> None:
    rounds = lane()
    rounds.start_at(3, 1000)
    assert rounds.look(pull(flags=Flag.NOW)) == AnswerAt(0, 3, 0)
    give(rounds, LEFT, is_last=True)
    assert give(rounds, RIGHT, is_last=True) == Closing(0, 3, 0, ((0, 1),), 1010, ends_pass=True)


def test_pulls_see_this_round_and_the_one_before() -> None:
    rounds = lane()
    for _ in range(3):
        close_round(rounds)
    assert rounds.look(pull(3)) == AnswerAt(3, 0, 3)
    assert rounds.look(pull(2)) == AnswerAt(2, 0, 2)
    assert rounds.look(pull(4)) == Wait()
    assert "round 1 is gone: the lane is at round 3" in reason(rounds.look(pull(1)))
    assert "round 5 is far ahead: the lane is at round 3" in reason(rounds.look(pull(5)))
    assert "pass 2 is far ahead: the lane is in pass 0" in reason(rounds.look(pull(2, Flag.AT_PASS)))


def test_a_pull_for_a_pass_waits_until_the_pass_begins() -> None:
    rounds = lane()
    close_round(rounds)
    assert rounds.look(pull(1, Flag.AT_PASS)) == Wait()
    close_round(rounds, is_last=True)
    assert rounds.look(pull(1, Flag.AT_PASS)) == AnswerAt(2, 1, 0)
    assert rounds.look(pull(1)) == AnswerAt(1, 0, 1)


def test_the_start_of_a_pass_stays_until_two_rounds_later() -> None:
    rounds = lane()
    close_round(rounds, is_last=True)
    close_round(rounds)
    assert rounds.look(pull(1, Flag.AT_PASS)) == AnswerAt(1, 1, 0)
    close_round(rounds)
    assert "round 1 is gone" in reason(rounds.look(pull(1, Flag.AT_PASS)))


def test_a_pull_for_an_old_pass_is_refused_by_its_number() -> None:
    rounds = lane()
    close_round(rounds, is_last=True)
    close_round(rounds, is_last=True)
    assert "pass 0" in reason(rounds.look(pull(0, Flag.AT_PASS)))
