"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Counts consecutive failures. The wait is random, from half the limit to the limit, so that
    clients that failed together do not retry together."""

    def __init__(
        self,
        first_ms: int,
        most_ms: int,
        *,
        monotonic: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._monotonic = monotonic
        self._rng = rng
        self.failure_count = 0
        """In a row."""
        self._not_before_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the next attempt may start."""
        return self._monotonic() >= self._not_before_s

    @property
    def left_ms(self) -> int:
        return max(int((self._not_before_s - self._monotonic()) * 1000), 0)

    def note_failure(self) -> None:
        self.failure_count += 1
        doublings = min(self.failure_count - 1, 40)
        limit_ms = min(self._first_ms << doublings, self._most_ms)
        wait_ms = limit_ms * self._rng.uniform(0.5, 1.0)
        self._not_before_s = self._monotonic() + wait_ms / 1000

    def note_success(self) -> None:
        self.failure_count = 0
        self._not_before_s = 0.0

    def give_up(self) -> None:
        """Lets the next attempt start at once, at an operator's request."""
        self._not_before_s = 0.0
