"""The present problems of a store's storage: the one place that storage reports to and that the
log, metrics, status, readiness and descriptions of topics read.

A problem is logged when it begins and when it is over, not each time that it occurs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from firnmq.clock import Clock
from firnmq.errors import DiskFull, FirnError, StorageFailed
from firnmq.eventlog import EventLogger

_QUIET_MS = 60_000
"""A problem that comes and goes is logged once in this time: otherwise a device that refuses every
write would be logged with every request."""

_log = EventLogger("health")


class ProblemKind(Enum):
    """Kinds of problem. The value is the event in the log."""

    SHARD_FAILED = "shard_failed"
    """A write failed, or the shard cannot be opened: appends are refused."""
    SEGMENT_UNREADABLE = "segment_unreadable"
    """A file is missing or its bytes are not those that were written."""
    OBJECT_STORE_MISSING = "object_store_missing"
    """Segments are only in an object store, and the node was started without one."""
    DATABASE_FAILED = "database_failed"
    """The metadata or the key-value store refuses writes."""
    DISK_FULL = "disk_full"
    """The disk is full: appends are refused; reads and deletions continue."""
    METADATA_AWAY = "metadata_away"
    """The metadata of the cluster cannot be changed. What the node leads is served all the same."""

    @property
    def effect(self) -> str:
        return _EFFECTS[self]


_EFFECTS = {
    ProblemKind.SHARD_FAILED: "appends are refused; the node reopens the shard by itself",
    ProblemKind.SEGMENT_UNREADABLE: "reads there fail; run firn verify and restore the file",
    ProblemKind.OBJECT_STORE_MISSING: "reads there fail; start the node with its object store",
    ProblemKind.DATABASE_FAILED: "changes are refused; the node reopens the database by itself",
    ProblemKind.DISK_FULL: "appends are refused; free some room, delete records or topics",
    ProblemKind.METADATA_AWAY: (
        "topics cannot be changed, and other nodes may take this one for gone; it waits"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem and when it began."""

    kind: ProblemKind
    subject: str
    """The shard's name in storage, the database's, or nothing for the whole store."""
    shown: str
    """The subject as users know it."""
    reason: str
    since_ms: int


_Key: TypeAlias = tuple[ProblemKind, str]


class Health:
    """The problems of one store. Safe with threads; may be called with any lock held."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._problems: dict[_Key, Problem] = {}
        self._logged: set[_Key] = set()
        """Problems that were logged, or need not be."""
        self._logged_ms: dict[_Key, int] = {}
        """When each problem was last logged, by the steady clock."""
        self.shown: Callable[[str], str] = str
        """Returns the name that users know a shard by."""
        self.on_full: Callable[[], None] = _nothing
        """Called, outside all locks of this class, whenever a write meets a full disk."""

    def report(self, kind: ProblemKind, subject: str, error: FirnError) -> None:
        """Records a problem. A full disk is logged once, whatever it stops."""
        is_full = isinstance(error, DiskFull)
        reason = str(error.cause) if isinstance(error, StorageFailed) else str(error)
        self._note(kind, subject, reason, is_told=is_full and kind is not ProblemKind.DISK_FULL)
        if is_full:
            self._note(ProblemKind.DISK_FULL, "", reason, is_told=False)
            self.on_full()

    def clear(self, kind: ProblemKind, subject: str) -> None:
        """Records that a problem is over; a missing one is no error."""
        key = kind, subject
        if key not in self._problems:
            return
        with self._lock:
            problem = self._problems.pop(key, None)
            is_logged = key in self._logged
            self._logged.discard(key)
        if problem is not None and is_logged:
            name, since_ms = problem.shown or "the store", problem.since_ms
            _log.info(f"{kind.value}_over", subject=name, since_ms=since_ms)

    def tell(self) -> None:
        """Logs problems that recurred too soon to be logged, and last."""
        now_ms = self._clock.steady_ms()
        with self._lock:
            due = [key for key in self._problems if self._is_due(key, now_ms)]
            problems = [self._problems[key] for key in due]
            for key in due:
                self._mark(key, now_ms)
        for problem in problems:
            _tell(problem)

    def forget(self, subject: str) -> None:
        """Drops all problems of a shard that was deleted."""
        with self._lock:
            for key in [key for key in self._problems if key[1] == subject]:
                del self._problems[key]
                self._logged.discard(key)
            for key in [key for key in self._logged_ms if key[1] == subject]:
                del self._logged_ms[key]

    def problems(self) -> list[Problem]:
        """The present problems, oldest first."""
        with self._lock:
            return list(self._problems.values())

    def summary(self) -> list[str]:
        """The number of problems of each kind that keeps the node from its work, without names."""
        kinds = [kind for kind in ProblemKind if kind is not ProblemKind.METADATA_AWAY]
        counts = [(kind, self.count(kind)) for kind in kinds]
        return [f"{kind.value}: {count}; {kind.effect}" for kind, count in counts if count]

    def count(self, kind: ProblemKind) -> int:
        with self._lock:
            return sum(each is kind for each, _ in self._problems)

    def has(self, kind: ProblemKind, subject: str) -> bool:
        return (kind, subject) in self._problems

    def failure_of(self, subject: str) -> str | None:
        """A shard's problem; None if there is none."""
        with self._lock:
            found = [each for each in self._problems.values() if each.subject == subject]
        return "; ".join(each.reason for each in found) or None

    def _note(self, kind: ProblemKind, subject: str, reason: str, *, is_told: bool) -> None:
        """`is_told`: another line of the log says it."""
        key = kind, subject
        with self._lock:
            if key in self._problems:
                return
            problem = self._problems[key] = Problem(
                kind=kind,
                subject=subject,
                shown=self.shown(subject) if subject else "",
                reason=reason,
                since_ms=self._clock.now_ms(),
            )
            now_ms = self._clock.steady_ms()
            is_due = not is_told and self._is_due(key, now_ms)
            if is_due:
                self._mark(key, now_ms)
            elif is_told:
                self._logged.add(key)
        if is_due:
            _tell(problem)

    def _is_due(self, key: _Key, now_ms: int) -> bool:
        last_ms = self._logged_ms.get(key)
        return key not in self._logged and (last_ms is None or now_ms - last_ms >= _QUIET_MS)

    def _mark(self, key: _Key, now_ms: int) -> None:
        self._logged.add(key)
        self._logged_ms[key] = now_ms


def _tell(problem: Problem) -> None:
    _log.error(
        problem.kind.value,
        subject=problem.shown or "the store",
        error=problem.reason,
        effect=problem.kind.effect,
    )


def _nothing() -> None:
    """The default: changes are not reported."""
