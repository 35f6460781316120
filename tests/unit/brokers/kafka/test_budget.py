"""The byte budget: who fits goes on, who does not waits in line."""

from __future__ import annotations

from firnmq.brokers.kafka.budget import ByteBudget


def test_those_who_wait_are_served_in_order() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    assert budget.take_or_wait("a", 80, lambda: granted.append("a"))
    assert not budget.take_or_wait("b", 50, lambda: granted.append("b"))
    # c would fit, but b was first.
    assert not budget.take_or_wait("c", 10, lambda: granted.append("c"))
    assert (granted, budget.used_bytes, budget.waiting_count) == ([], 80, 2)
    budget.give_back(80)
    assert (granted, budget.used_bytes, budget.waiting_count) == (["b", "c"], 60, 0)


def test_one_larger_than_everything_gets_in_alone() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    budget.take(1)
    assert not budget.take_or_wait("a", 500, lambda: granted.append("a"))
    budget.give_back(1)
    assert (granted, budget.used_bytes, budget.is_full) == (["a"], 500, True)


def test_one_that_goes_away_does_not_hold_up_the_others() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    budget.take(100)
    budget.take_or_wait("a", 90, lambda: granted.append("a"))
    budget.take_or_wait("b", 20, lambda: granted.append("b"))
    budget.stop_waiting("a")
    budget.stop_waiting("never")
    budget.give_back(100)
    assert (granted, budget.used_bytes) == (["b"], 20)
