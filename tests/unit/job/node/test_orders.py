from __future__ import annotations

import threading

import pytest

from bireme.core.errors import RefusedError
from bireme.job.coordination import messages as m
from bireme.job.node.orders import Order, Orders

WAIT_S = 10.0
FINISHED, CANCELLED = m.Stop(reason="done", how="finished"), m.Stop(reason="asked to", how="cancelled")


def begin(view: int) -> m.Begin:
    return m.Begin(job=7, view=view, shares=(), pservers=())


class Heard:
    """Orders, and how often the training thread was woken."""

    def __init__(self) -> None:
        self.woken = 0
        self.orders = Orders(self._wake)

    def _wake(self) -> None:
        self.woken += 1


def test_only_a_later_view_is_a_newer_order() -> None:
    heard = Heard()
    assert not heard.orders.has_newer(0)
    heard.orders.put(begin(4))
    assert [heard.orders.has_newer(view) for view in (0, 3, 4, 5)] == [True, True, False, False]
    assert heard.orders.wait(3) == begin(4)


def test_of_two_views_only_the_newer_counts() -> None:
    heard = Heard()
    heard.orders.put(begin(4))
    heard.orders.put(begin(5))
    assert heard.orders.wait(0) == begin(5)
    assert heard.woken == 2


def test_waiting_in_vain_ends_with_what_was_known() -> None:
    heard = Heard()
    heard.orders.put(begin(4))
    assert heard.orders.wait(4, timeout_s=0.0) == begin(4)


@pytest.mark.parametrize("stop", [FINISHED, CANCELLED], ids=lambda stop: stop.how)
@pytest.mark.parametrize("before", [[], [begin(4)], [None], [begin(4), None]], ids=["", "view", "loss", "both"])
def test_an_ending_comes_before_a_loss_and_a_view(stop: m.Stop, before: list[Order]) -> None:
    heard = Heard()
    for order in [*before, stop]:
        heard.orders.put(order)
    assert heard.orders.has_newer(99)
    assert heard.orders.wait(0) == stop


def test_a_loss_comes_before_a_view() -> None:
    heard = Heard()
    heard.orders.put(None)
    heard.orders.put(begin(4))
    assert heard.orders.wait(0) is None


def test_training_is_woken_by_all_but_a_good_ending() -> None:
    heard = Heard()
    heard.orders.put(FINISHED)
    assert heard.woken == 0, "its last pull may still be on its way"
    for count, order in enumerate([begin(1), CANCELLED, None], start=1):
        heard.orders.put(order)
        assert heard.woken == count


def test_a_refusal_is_raised_where_orders_are_awaited() -> None:
    heard = Heard()
    heard.orders.refuse(RefusedError("you are not of this job"))
    assert heard.woken == 1
    with pytest.raises(RefusedError, match="not of this job"):
        heard.orders.wait(0)


@pytest.mark.parametrize("order", [begin(4), CANCELLED, None], ids=["view", "ending", "loss"])
def test_a_waiting_thread_is_woken_by_an_order(order: Order) -> None:
    heard, got = Heard(), list[Order]()
    waiting = threading.Thread(target=lambda: got.append(heard.orders.wait(3, WAIT_S)))
    waiting.start()
    heard.orders.put(begin(3))
    heard.orders.put(order)
    waiting.join(WAIT_S)
    assert got == [order]
