"""Waiting after failures: longer each time, within bounds, not in step with others."""

import random

from firnmq.tiering.patience import Patience


class Monotonic:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_waits_double_up_to_a_limit() -> None:
    clock = Monotonic()
    patience = Patience(100, 1_000, monotonic=clock, rng=random.Random(1))
    assert patience.is_over
    for limit_ms in (100, 200, 400, 800, 1_000, 1_000):
        patience.note_failure()
        assert limit_ms / 2 - 1 <= patience.left_ms <= limit_ms
        assert not patience.is_over
        clock.now_s += limit_ms / 1_000
        assert patience.is_over
    assert patience.failure_count == 6


def test_success_and_impatience_end_the_wait() -> None:
    patience = Patience(1_000, 2_000, monotonic=Monotonic(), rng=random.Random(1))
    patience.note_failure()
    patience.give_up()
    assert (patience.is_over, patience.failure_count) == (True, 1)
    patience.note_failure()
    patience.note_success()
    assert (patience.is_over, patience.failure_count, patience.left_ms) == (True, 0, 0)


def test_waits_are_not_all_the_same() -> None:
    rng = random.Random(7)
    waits = set()
    for _ in range(20):
        patience = Patience(10_000, 10_000, monotonic=Monotonic(), rng=rng)
        patience.note_failure()
        waits.add(patience.left_ms)
    assert len(waits) > 10


def test_very_many_failures_overflow_nothing() -> None:
    patience = Patience(100, 60_000, monotonic=Monotonic(), rng=random.Random(1))
    for _ in range(10_000):
        patience.note_failure()
    assert patience.left_ms <= 60_000
