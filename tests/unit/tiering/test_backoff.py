"""Waiting after failures: longer each time, within bounds, not in step with others."""

import random

from firnmq.tiering.move.backoff import Backoff


class Monotonic:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_waits_double_up_to_a_limit() -> None:
    clock = Monotonic()
    backoff = Backoff(100, 1_000, monotonic=clock, rng=random.Random(1))
    assert backoff.is_over
    for limit_ms in (100, 200, 400, 800, 1_000, 1_000):
        backoff.note_failure()
        assert limit_ms / 2 - 1 <= backoff.left_ms <= limit_ms
        assert not backoff.is_over
        clock.now_s += limit_ms / 1_000
        assert backoff.is_over
    assert backoff.failure_count == 6


def test_success_and_a_user_end_the_wait() -> None:
    backoff = Backoff(1_000, 2_000, monotonic=Monotonic(), rng=random.Random(1))
    backoff.note_failure()
    backoff.give_up()
    assert (backoff.is_over, backoff.failure_count) == (True, 1)
    backoff.note_failure()
    backoff.note_success()
    assert (backoff.is_over, backoff.failure_count, backoff.left_ms) == (True, 0, 0)


def test_waits_are_not_all_the_same() -> None:
    rng = random.Random(7)
    waits = set()
    for _ in range(20):
        backoff = Backoff(10_000, 10_000, monotonic=Monotonic(), rng=rng)
        backoff.note_failure()
        waits.add(backoff.left_ms)
    assert len(waits) > 10


def test_very_many_failures_overflow_nothing() -> None:
    backoff = Backoff(100, 60_000, monotonic=Monotonic(), rng=random.Random(1))
    for _ in range(10_000):
        backoff.note_failure()
    assert backoff.left_ms <= 60_000
