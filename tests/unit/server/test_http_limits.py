"""Connections and request bodies of the HTTP listener: who gets a place, who has to go."""

from __future__ import annotations

import itertools

import pytest

from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.config import AdminConfig
from firnmq.server.admin.errors import Refused
from firnmq.server.admin.http.limits import SPARE_CONNECTIONS, BodyBudget, ConnectionLimits

_times = itertools.count()


class Client:
    """A connection that is in the state that a test gives it."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.waits_since_s = float(next(_times))
        self.answered_count = 0
        self.is_waiting = True
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def limits(**settings: int) -> ConnectionLimits:
    return ConnectionLimits(AdminConfig(**settings), BrokerStatistics(), lambda: 0.0)


def test_silent_connections_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    statistics = BrokerStatistics()
    held = ConnectionLimits(AdminConfig(), statistics, lambda: 0.0)
    for number in range(300):
        held.timed_out(Client(f"10.0.0.{number % 2}"), "header")
    lines = [each.fields["peer"] for each in caplog.records]  # type: ignore[attr-defined]
    assert lines == ["10.0.0.0", "10.0.0.1"]
    assert statistics.closed_by_limit == {"http_header_timeout": 300}


def test_silent_connections_give_way_the_oldest_first() -> None:
    held = limits(connections_max=3)
    silent = [Client() for _ in range(3)]
    assert all(held.connected(each) for each in silent)
    newer = [Client() for _ in range(2)]
    assert all(held.connected(each) for each in newer)
    assert [each.is_aborted for each in silent] == [True, True, False]


def test_one_that_has_asked_before_stays_longer_than_one_that_never_did() -> None:
    held = limits(connections_max=2)
    asked, silent = Client(), Client()
    asked.answered_count = 1
    assert held.connected(asked)
    assert held.connected(silent)
    assert held.connected(Client())
    assert (asked.is_aborted, silent.is_aborted) == (False, True)


def test_requests_under_way_are_not_ended_and_health_still_gets_in() -> None:
    held = limits(connections_max=2)
    busy = [Client(), Client()]
    for each in busy:
        assert held.connected(each)
        each.is_waiting = False
    spares = [Client() for _ in range(SPARE_CONNECTIONS)]
    assert not any(held.connected(each) for each in spares)
    assert not held.connected(Client())
    assert not any(each.is_aborted for each in (*busy, *spares[1:]))
    assert spares[0].is_aborted
    held.disconnected(busy[0])
    assert held.connected(Client()), "a place is free again"


def test_one_address_leaves_room_for_others() -> None:
    held = limits(connections_max=4, connections_per_address_max=2)
    greedy = [Client("10.0.0.1") for _ in range(2)]
    for each in greedy:
        assert held.connected(each)
        each.is_waiting = False
    other = Client("10.0.0.2")
    assert held.connected(other)
    assert not held.connected(Client("10.0.0.1"))
    assert held.connected(Client("10.0.0.2"))
    assert not other.is_aborted, "only connections of the greedy address are in its way"


def test_bodies_share_one_budget() -> None:
    budget = BodyBudget(100, body_bytes_max=60)
    with budget.body("10.0.0.1") as first:
        first(60)
        with budget.body("10.0.0.2") as second:
            second(40)
            with pytest.raises(Refused) as refused:
                second(1)
            assert refused.value.status == 503
        assert budget.used_bytes == 60
        with budget.body("10.0.0.2") as third:
            third(40)
    assert budget.used_bytes == 0


def test_bodies_of_one_address_leave_half_of_the_budget() -> None:
    budget = BodyBudget(100, body_bytes_max=20)
    with budget.body("10.0.0.1") as first, budget.body("10.0.0.1") as second:
        first(20)
        second(30)
        with pytest.raises(Refused, match="your requests under way hold 50 of 50 bytes"):
            second(1)
        with budget.body("10.0.0.2") as other:
            other(50)
    with budget.body("10.0.0.1") as later:
        later(50)


def test_one_body_of_the_largest_size_always_fits_the_share_of_its_address() -> None:
    budget = BodyBudget(100, body_bytes_max=90)
    with budget.body("10.0.0.1") as first:
        first(90)
    with pytest.raises(Refused), budget.body("10.0.0.1") as larger:
        larger(91)


@pytest.mark.parametrize("name", ["connections_max", "header_timeout_s", "body_bytes_total_max"])
def test_limits_are_above_zero(name: str) -> None:
    from firnmq.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match=name):
        AdminConfig(**{name: 0})
