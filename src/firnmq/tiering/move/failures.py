"""What has failed, the object store or single segments, and when each is tried again."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from firnmq.clock import Clock
from firnmq.config import TieringConfig
from firnmq.eventlog import EventLogger
from firnmq.tiering.move.backoff import Backoff
from firnmq.tiering.move.ledger import SegmentId
from firnmq.tiering.move.status import FailureKind, kind_of

_log = EventLogger("tiering")


class LastError(NamedTuple):
    text: str
    at_ms: int


class SegmentFailure(NamedTuple):
    """An upload that failed for a reason of its segment's own."""

    backoff: Backoff
    error: str


class Failures:
    """Failures of the store hold up all work, those of a segment the uploads of its shard. Each is
    logged when it is news. Safe with threads."""

    def __init__(
        self,
        config: TieringConfig,
        clock: Clock,
        *,
        monotonic: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._clock = clock
        self._monotonic = monotonic
        self._rng = rng
        self._lock = threading.Lock()
        self._segments: dict[SegmentId, SegmentFailure] = {}
        self._counts: Counter[str] = Counter()
        self.backoff = self._new_backoff()
        """Of the store."""
        self.of_store: FailureKind | None = None
        """Why the store cannot be used; None if it can, or was never used."""
        self.last: LastError | None = None

    def note(self, at: SegmentId | None, error: Exception) -> None:
        """Work failed: an upload of the segment, or another step if there is none."""
        kind = kind_of(error)
        with self._lock:
            self._counts[kind.value] += 1
            self.last = LastError(str(error), self._clock.now_ms())
            if at is None or kind.is_of_store:
                is_news = self.of_store is not kind
                self.of_store = kind
                self.backoff.note_failure()
            else:
                before = self._segments.get(at)
                backoff = self._new_backoff() if before is None else before.backoff
                backoff.note_failure()
                self._segments[at] = SegmentFailure(backoff, str(error))
                is_news = backoff.failure_count == 1
        if is_news:
            fields = {} if at is None else {"shard": at.shard, "segment": at.seq}
            _log.error("tiering_failed", kind=kind.value, error=str(error), **fields)

    def note_success(self) -> None:
        """The store did what it was asked."""
        with self._lock:
            was = self.of_store
            self.of_store = None
            self.backoff.note_success()
        if was is not None:
            _log.info("store_usable_again", was=was.value)

    def of(self, at: SegmentId) -> SegmentFailure | None:
        with self._lock:
            return self._segments.get(at)

    def give_up_waiting(self, segments: Iterable[SegmentId]) -> None:
        """Has the store and these segments tried at once."""
        with self._lock:
            for at in segments:
                if at in self._segments:
                    self._segments[at].backoff.give_up()
        self.backoff.give_up()

    def forget(self, at: SegmentId) -> None:
        with self._lock:
            self._segments.pop(at, None)

    def keep(self, is_known: Callable[[SegmentId], bool]) -> None:
        """Drops the failures of all other segments."""
        with self._lock:
            self._segments = {at: each for at, each in self._segments.items() if is_known(at)}

    def counts(self) -> dict[str, int]:
        """How many there were of each kind."""
        with self._lock:
            return {kind.value: self._counts[kind.value] for kind in FailureKind}

    def _new_backoff(self) -> Backoff:
        config = self._config
        return Backoff(
            config.retry_ms, config.retry_ms_max, monotonic=self._monotonic, rng=self._rng
        )
