"""The SQLite store against a plain model: contents, revisions, compares, watches, sessions."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)

from firnmq.meta import (
    Changes,
    Compacted,
    Compare,
    Entry,
    Event,
    SessionLapsed,
    SqliteMetaStore,
    TxnConflict,
    Watch,
)
from firnmq.meta.api import CompareField
from firnmq.meta.sqlite import SqliteSession
from firnmq.testing import FakeClock

KEYS = st.sampled_from([f"{folder}/{name}" for folder in "ab" for name in "xyz"] + ["a", "b0"])
PREFIXES = st.sampled_from(["", "a", "a/", "b", "b/x", "c"])
VALUES = st.binary(max_size=4)
TTL_MS = st.integers(1, 5_000)


@dataclass
class Lease:
    ttl_ms: int
    deadline_ms: int


@dataclass
class Model:
    """What the store must hold, in the plainest form."""

    revision: int = 0
    oldest: int = 1
    entries: dict[str, Entry] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)

    def holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        if entry is None:
            return compare.revision == 0
        is_mod = compare.field is CompareField.MOD
        return compare.revision == (entry.mod_revision if is_mod else entry.create_revision)

    def change(self, puts: dict[str, bytes], deletes: list[str], owner: int) -> int:
        gone = [key for key in deletes if key in self.entries]
        if not puts and not gone:
            return self.revision
        self.revision += 1
        events = []
        for key, value in puts.items():
            before = self.entries.get(key)
            created = self.revision if before is None else before.create_revision
            entry = Entry(key=key, value=value, create_revision=created, mod_revision=self.revision)
            self.entries[key] = entry
            self.owners[key] = owner
            events.append(Event(key=key, revision=self.revision, entry=entry))
        for key in gone:
            del self.entries[key]
            del self.owners[key]
            events.append(Event(key=key, revision=self.revision, entry=None))
        self.history += sorted(events, key=lambda event: event.key)
        return self.revision

    def end(self, session_id: int) -> None:
        del self.leases[session_id]
        self.change({}, [key for key, owner in self.owners.items() if owner == session_id], 0)

    def expire(self, now_ms: int) -> None:
        for session_id in sorted(self.leases):
            if self.leases[session_id].deadline_ms <= now_ms:
                self.end(session_id)


@dataclass
class Watched:
    prefix: str
    next_revision: int
    watch: Watch
    store: SqliteMetaStore


class StoreMachine(RuleBasedStateMachine):
    sessions: Bundle[int] = Bundle("sessions")
    watches: Bundle[Watched] = Bundle("watches")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.model = Model()
        self.store = self.opened()

    def opened(self) -> SqliteMetaStore:
        return SqliteMetaStore(self.directory / "meta.db", clock=self.clock, is_shared=True)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @rule(
        puts=st.dictionaries(KEYS, VALUES, max_size=3),
        deletes=st.lists(KEYS, unique=True, max_size=3),
        session=st.none() | sessions,
    )
    def change(self, puts: dict[str, bytes], deletes: list[str], session: int | None) -> None:
        deletes = [key for key in deletes if key not in puts]
        self.model.expire(self.clock.now_ms())
        owner = None if session is None else SqliteSession(self.store, session)
        if session is not None and session not in self.model.leases:
            with pytest.raises(SessionLapsed):
                self.store.txn(puts=puts, deletes=deletes, session=owner)
            return
        expected = self.model.change(puts, deletes, session or 0)
        assert self.store.txn(puts=puts, deletes=deletes, session=owner) == expected

    @rule(data=st.data(), puts=st.dictionaries(KEYS, VALUES, min_size=1, max_size=2))
    def change_if(self, data: st.DataObject, puts: dict[str, bytes]) -> None:
        self.model.expire(self.clock.now_ms())
        compares = data.draw(
            st.lists(
                st.builds(
                    Compare,
                    key=KEYS,
                    revision=st.integers(0, self.model.revision + 1),
                    field=st.sampled_from(CompareField),
                )
                | KEYS.map(
                    lambda key: (
                        Compare.unchanged(self.model.entries[key])
                        if key in self.model.entries
                        else Compare.absent(key)
                    )
                ),
                max_size=2,
            )
        )
        if all(map(self.model.holds, compares)):
            assert self.store.txn(compares, puts) == self.model.change(puts, [], 0)
            return
        with pytest.raises(TxnConflict) as caught:
            self.store.txn(compares, puts)
        assert not self.model.holds(caught.value.compare)

    @rule(target=sessions, ttl_ms=TTL_MS)
    def begin_session(self, ttl_ms: int) -> int:
        session = self.store.session(ttl_ms / 1000)
        deadline_ms = self.clock.now_ms() + ttl_ms
        self.model.leases[session.session_id] = Lease(ttl_ms, deadline_ms)
        return session.session_id

    @rule(session=sessions)
    def keep_alive(self, session: int) -> None:
        self.model.expire(self.clock.now_ms())
        lease = self.model.leases.get(session)
        try:
            SqliteSession(self.store, session).keep_alive()
        except SessionLapsed:
            assert lease is None
            return
        assert lease is not None
        lease.deadline_ms = self.clock.now_ms() + lease.ttl_ms

    @rule(session=sessions)
    def end_session(self, session: int) -> None:
        if session in self.model.leases:
            self.model.end(session)
        SqliteSession(self.store, session).close()

    @rule(ms=st.integers(0, 3_000))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.model.expire(self.clock.now_ms())
        self.store.expire_sessions()

    @rule(revision=st.integers(0, 30))
    def compact(self, revision: int) -> None:
        self.model.oldest = max(self.model.oldest, min(revision, self.model.revision + 1))
        self.store.compact(revision)

    @rule(target=watches, prefix=PREFIXES, revision=st.integers(1, 30))
    def watch(self, prefix: str, revision: int) -> object:
        try:
            watch = self.store.watch(prefix, revision)
        except Compacted:
            assert revision < self.model.oldest
            return multiple()
        assert revision >= self.model.oldest
        return Watched(prefix, revision, watch, self.store)

    @rule(watched=watches)
    def take(self, watched: Watched) -> None:
        is_behind = watched.next_revision <= self.model.revision
        try:
            if watched.store is not self.store:  # It goes on where it was before the restart.
                watched.watch = self.store.watch(watched.prefix, watched.next_revision)
                watched.store = self.store
            taken = watched.watch.take(0)
        except Compacted:
            assert watched.next_revision < self.model.oldest
            return
        if not is_behind:
            assert taken is None
            return
        assert watched.next_revision >= self.model.oldest
        expected = tuple(
            event
            for event in self.model.history
            if event.revision >= watched.next_revision and event.key.startswith(watched.prefix)
        )
        assert taken == Changes(revision=self.model.revision, events=expected)
        watched.next_revision = self.model.revision + 1

    @rule()
    def reopen(self) -> None:
        """Watches end with the process; sessions and revisions do not."""
        self.store.close()
        self.store = self.opened()

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        for prefix in ("", "a/"):
            found = self.store.range(prefix)
            expected = sorted(key for key in self.model.entries if key.startswith(prefix))
            assert found.revision == self.model.revision
            assert found.entries == tuple(self.model.entries[key] for key in expected)
        for key in ("a", "b/x"):
            assert self.store.get(key) == self.model.entries.get(key)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
