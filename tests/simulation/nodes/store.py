"""The meta store: what is stored, and how a process reaches it, which may fail in every way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from firnmq.errors import Closed, StorageFailed, TimedOut
from firnmq.meta import (
    Changes,
    Compacted,
    Compare,
    Entry,
    Event,
    Session,
    SessionLapsed,
    Snapshot,
    TxnConflict,
)
from firnmq.meta.api import CompareField
from tests.simulation.nodes.tasks import Process, Tasks

_ANSWER_MS = (0.0, 8.0)
_SLOW_MS = (200.0, 2_500.0)
_CALL_MS = 2_000.0
"""How long a process waits for an answer that does not come."""
_POLL_MS = 250.0


@dataclass(slots=True)
class Life:
    """A session."""

    session_id: int
    ttl_ms: float
    ends_ms: float
    keys: set[str] = field(default_factory=set)


class StoredState:
    """What is stored. Every change is one step."""

    def __init__(self, tasks: Tasks, on_change: Callable[[list[Event]], None]) -> None:
        self._tasks = tasks
        self._on_change = on_change
        self.entries: dict[str, Entry] = {}
        self.revision = 1
        self.history: list[tuple[int, list[Event]]] = []
        self.oldest = 2
        """Changes before this revision are forgotten."""
        self.lives: dict[int, Life] = {}
        self._life_count = 0
        self.txn_ops_max = 12

    def txn(
        self,
        compares: Sequence[Compare],
        puts: Mapping[str, bytes],
        deletes: Sequence[str],
        session_id: int | None,
    ) -> int:
        assert len(puts) + len(deletes) <= self.txn_ops_max
        assert len(compares) <= self.txn_ops_max
        life = None
        if session_id is not None:
            life = self.lives.get(session_id)
            if life is None:
                raise SessionLapsed(session_id)
        for compare in compares:
            entry = self.entries.get(compare.key)
            if entry is None:
                found = 0
            elif compare.field is CompareField.CREATE:
                found = entry.create_revision
            else:
                found = entry.mod_revision
            if found != compare.revision:
                raise TxnConflict(compare, found)
        return self._change(puts, deletes, life)

    def _change(
        self, puts: Mapping[str, bytes], deletes: Sequence[str], life: Life | None = None
    ) -> int:
        revision = self.revision + 1
        events = []
        for key in deletes:
            if self.entries.pop(key, None) is not None:
                events.append(Event(key=key, revision=revision, entry=None))
                self._disown(key)
        for key, value in puts.items():
            before = self.entries.get(key)
            created = revision if before is None else before.create_revision
            entry = Entry(key=key, value=value, create_revision=created, mod_revision=revision)
            self.entries[key] = entry
            events.append(Event(key=key, revision=revision, entry=entry))
            self._disown(key)
            if life is not None:
                life.keys.add(key)
        if not events:
            return self.revision
        self.revision = revision
        self.history.append((revision, events))
        self._on_change(events)
        return revision

    def _disown(self, key: str) -> None:
        for life in self.lives.values():
            life.keys.discard(key)

    def snapshot(self, prefix: str) -> Snapshot:
        keys = sorted(key for key in self.entries if key.startswith(prefix))
        return Snapshot(revision=self.revision, entries=tuple(self.entries[key] for key in keys))

    def begin_session(self, ttl_ms: float) -> Life:
        self._life_count += 1
        life = Life(self._life_count, ttl_ms, self._tasks.now_ms + ttl_ms)
        self.lives[life.session_id] = life
        return life

    def keep_alive(self, session_id: int) -> None:
        life = self.lives.get(session_id)
        if life is None:
            raise SessionLapsed(session_id)
        life.ends_ms = self._tasks.now_ms + life.ttl_ms

    def end_session(self, session_id: int) -> None:
        life = self.lives.pop(session_id, None)
        if life is not None:
            self._change({}, sorted(life.keys))

    def lapse(self) -> None:
        """Ends the sessions whose time is over."""
        for life in list(self.lives.values()):
            if life.ends_ms <= self._tasks.now_ms:
                self.end_session(life.session_id)

    def compact(self) -> None:
        """Forgets all changes so far."""
        self.history.clear()
        self.oldest = self.revision + 1


class Reach:
    """How well a process reaches the store."""

    def __init__(self) -> None:
        self.cut_until_ms = 0.0
        self.slow_until_ms = 0.0
        self.loss = 0.0
        """Chance that a request or its answer is lost."""


class SimStore:
    """A MetaStore of one process."""

    def __init__(self, state: StoredState, tasks: Tasks, reach: Reach, process: Process) -> None:
        self._state = state
        self._tasks = tasks
        self._reach = reach
        self._process = process
        self._is_closed = False

    @property
    def txn_ops_max(self) -> int:
        return self._state.txn_ops_max

    def get(self, key: str) -> Entry | None:
        self._request()
        found = self._state.entries.get(key)
        self._answer()
        return found

    def range(self, prefix: str) -> Snapshot:
        self._request()
        found = self._state.snapshot(prefix)
        self._answer()
        return found

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        session_id = None if session is None else session.session_id
        try:
            self._request()
        except TimedOut as error:  # The request may arrive yet, or not at all.
            if self._tasks.rng.random() < 0.5:
                self._deliver_late(compares, dict(puts or {}), deletes, session_id)
            if self._tasks.rng.random() < 0.3 and not self._reach.loss:
                raise
            raise _unknown(error) from None
        revision = self._state.txn(compares, puts or {}, deletes, session_id)
        try:
            self._answer()
        except TimedOut as error:
            raise _unknown(error) from None
        return revision

    def _deliver_late(
        self,
        compares: Sequence[Compare],
        puts: Mapping[str, bytes],
        deletes: Sequence[str],
        session_id: int | None,
    ) -> None:
        """A transaction whose sender has given up happens before it learns so."""
        try:
            self._state.txn(compares, puts, deletes, session_id)
        except (TxnConflict, SessionLapsed):
            pass

    def watch(self, prefix: str, from_revision: int) -> SimWatch:
        self._request()
        if from_revision < self._state.oldest and self._state.revision >= from_revision:
            raise Compacted(from_revision, self._state.oldest)
        return SimWatch(self, prefix, from_revision)

    def session(self, ttl_s: float) -> SimSession:
        self._request()
        life = self._state.begin_session(ttl_s * 1000)
        self._answer()
        return SimSession(self, life.session_id)

    def resume_session(self, session_id: int) -> SimSession:
        return SimSession(self, session_id)

    def close(self) -> None:
        self._is_closed = True

    def _request(self) -> None:
        self._tasks.check_alive()
        if self._is_closed:
            raise Closed("the store is closed")
        self._travel()

    def _answer(self) -> None:
        self._travel()

    def _travel(self) -> None:
        tasks, reach, rng = self._tasks, self._reach, self._tasks.rng
        if tasks.now_ms < reach.cut_until_ms or rng.random() < reach.loss:
            tasks.sleep(_CALL_MS)
            raise TimedOut("the store did not answer")
        is_slow = tasks.now_ms < reach.slow_until_ms
        tasks.sleep(rng.uniform(*(_SLOW_MS if is_slow else _ANSWER_MS)))


class SimSession:
    def __init__(self, store: SimStore, session_id: int) -> None:
        self._store = store
        self._session_id = session_id

    @property
    def session_id(self) -> int:
        return self._session_id

    def keep_alive(self) -> None:
        self._store._request()
        self._store._state.keep_alive(self._session_id)
        self._store._answer()

    def close(self) -> None:
        self._store._request()
        self._store._state.end_session(self._session_id)
        self._store._answer()


class SimWatch:
    def __init__(self, store: SimStore, prefix: str, from_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._next = from_revision
        self._is_closed = False

    def take(self, timeout_s: float) -> Changes | None:
        store = self._store
        tasks, state, reach = store._tasks, store._state, store._reach
        end_ms = tasks.now_ms + timeout_s * 1000
        while not self._is_closed:
            tasks.sleep(tasks.rng.uniform(0.0, 20.0))
            if self._is_closed:
                break
            if tasks.now_ms < reach.cut_until_ms or tasks.rng.random() < reach.loss / 4:
                raise StorageFailed("the metadata", ConnectionError("the watch was cut"))
            if self._next < state.oldest and state.revision >= self._next:
                raise Compacted(self._next, state.oldest)
            if state.revision >= self._next:
                return self._changes()
            if tasks.now_ms >= end_ms:
                return None
            tasks.sleep(min(_POLL_MS, end_ms - tasks.now_ms))
        raise Closed("the watch is closed")

    def _changes(self) -> Changes:
        state = self._store._state
        missed = [each for each in state.history if each[0] >= self._next]
        taken = missed[: self._store._tasks.rng.randint(1, len(missed))]
        self._next = taken[-1][0] + 1
        events = [
            event for _, part in taken for event in part if event.key.startswith(self._prefix)
        ]
        return Changes(revision=taken[-1][0], events=tuple(events))

    def close(self) -> None:
        self._is_closed = True


def _unknown(cause: Exception) -> StorageFailed:
    error = StorageFailed("the metadata", cause)
    error.is_outcome_unknown = True
    return error
