"""How long to wait after a failure: twice as long each time, and not all at the same moment."""

from __future__ import annotations

import random
from collections.abc import Callable


class Patience:
    """Counts failures in a row. The wait is drawn at random from its upper half, so that several
    who failed together do not come back together."""

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
        """Whether it may be tried again."""
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
        """Lets the next attempt come at once, because somebody asks for it."""
        self._not_before_s = 0.0
