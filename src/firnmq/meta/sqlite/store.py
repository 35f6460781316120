"""The meta store of a single machine: SQLite in WAL mode, synced at every commit.

`entries` holds the present entries, `changes` the changes by revision. Watches read `changes`, so a
watcher that was away for a while misses nothing as long as the changes are kept.

A data directory belongs to one process, so its store locks the file permanently and needs no shared
memory. If it is opened as shared, several processes of one machine may use it: one connection
reads, another one writes under a lock of all processes, and hints wake the watches of the others.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from firnmq.clock import Clock, SystemClock
from firnmq.errors import (
    Closed,
    FirnError,
    InvalidArgument,
    OtherFormat,
    StorageFailed,
    TimedOut,
    storage_failure,
)
from firnmq.meta.api import (
    Changes,
    Compacted,
    Compare,
    Entry,
    Session,
    SessionLapsed,
    Snapshot,
    TxnConflict,
)
from firnmq.meta.checks import check_request
from firnmq.meta.sqlite import rows
from firnmq.meta.sqlite.sharing import Hints, WriterLock

CHANGES_KEPT = 10_000
"""Revisions a watcher may be behind; one further behind reads a snapshot again."""
_COMPACT_EVERY = 500
_TAKE_REVISIONS = 1_000
"""Revisions per call of a watch: bounds its memory."""
_BUSY_S = 5.0
"""How long a writer waits for another process before it gives up; etcd's calls take as long."""
_IDLE_S = 0.25
"""How often a shared store looks without a hint: for lapsed sessions, and for a lost hint."""


class SqliteMetaStore:
    """A MetaStore in one file: one transaction at a time. Locks are taken in this order: the one of
    writers, then the condition."""

    txn_ops_max = 50_000
    """Bounds the memory of one transaction and the time for which it blocks others."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        is_shared: bool = False,
        changes_kept: int = CHANGES_KEPT,
        busy_s: float = _BUSY_S,
    ) -> None:
        self._path = path
        self._clock: Clock = clock or SystemClock()
        self._is_shared = is_shared
        self._changes_kept = changes_kept
        self._busy_s = busy_s
        self._changed = threading.Condition(threading.RLock())
        """Guards everything below; notified at every commit and when the store is closed."""
        self._committed = 0
        """The newest revision this store has written or seen."""
        self._failure: FirnError | None = None
        self.on_failure: Callable[[FirnError], None] = _ignore_failure
        """Called each time that a commit fails."""
        self._is_closed = False
        self._writers: WriterLock | None = None
        self._hints: Hints | None = None
        self._follower: threading.Thread | None = None
        if is_shared:
            self._open_shared()
        else:
            self._db = self._write_db = self._connect()
            self._end_sessions("id > ?", 0)  # All other processes have ended.

    def _open_shared(self) -> None:
        with ExitStack() as opened:
            try:
                self._writers = WriterLock(_beside(self._path, "-writers"), self._busy_s)
                opened.callback(self._writers.close)
                self._hints = Hints(_beside(self._path, "-watchers"))
                opened.callback(self._hints.close)
            except OSError as error:
                raise storage_failure(rows.WHERE, error) from error
            with self._writers.held():  # Only one process makes the tables, or recovers the log.
                self._write_db = self._connect()
                opened.callback(self._write_db.close)
                self._db = self._connect()
            opened.pop_all()

    # Reading ------------------------------------------------------------------------------

    def get(self, key: str) -> Entry | None:
        with self._using() as db:
            return rows.get(db, key)

    def range(self, prefix: str) -> Snapshot:
        with self._using() as db, rows.transaction(db, "DEFERRED"):
            found = db.execute(
                "SELECT key, value, create_revision, mod_revision FROM entries "
                "WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, rows.after(prefix)),
            ).fetchall()
            revision = rows.counter(db, "revision")
        return Snapshot(revision=revision, entries=tuple(map(rows.entry, found)))

    # Writing ------------------------------------------------------------------------------

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        puts = puts or {}
        check_request(compares, puts, deletes, self.txn_ops_max)
        self.expire_sessions()
        revision = 0
        with self._may_write():  # Held from the transaction to the check of its outcome.
            try:
                with self._writing() as db:
                    for compare in compares:
                        entry = rows.get(db, compare.key)
                        found = 0 if entry is None else getattr(entry, compare.field.value)
                        if found != compare.revision:
                            raise TxnConflict(compare, found)
                    if session is not None:
                        self._check_session(db, session.session_id)
                    owner = 0 if session is None else session.session_id
                    revision = self._change(db, puts, deletes, owner)
            except StorageFailed as failure:
                if revision == 0 or not self._has_happened(revision, failure):
                    raise
        return revision

    def _has_happened(self, revision: int, failure: StorageFailed) -> bool:
        """Whether a transaction was stored although its commit failed.

        Reopening the database decides it; if that fails too, the failure says that the outcome is
        unknown. The revision is no other process's, because the lock of writers is held.
        """
        try:
            with self._using() as db:
                found = rows.counter(db, "revision")
        except FirnError:
            failure.is_outcome_unknown = True
            return False
        return found >= revision

    def compact(self, revision: int) -> None:
        """Deletes the changes below a revision; watchers that are behind it start over."""
        with self._writing() as db:
            rows.compact(db, min(revision, rows.counter(db, "revision") + 1))

    def _change(
        self, db: sqlite3.Connection, puts: Mapping[str, bytes], deletes: Sequence[str], owner: int
    ) -> int:
        """Writes changes under the next revision, within the open transaction."""
        gone = [key for key in deletes if rows.get(db, key) is not None]
        revision = rows.counter(db, "revision")
        if not puts and not gone:
            return revision
        revision += 1
        db.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
            "value = excluded.value, mod_revision = excluded.mod_revision, "
            "session = excluded.session",
            ((key, value, revision, revision, owner) for key, value in puts.items()),
        )
        db.executemany(
            "INSERT INTO changes SELECT mod_revision, key, value, create_revision "
            "FROM entries WHERE key = ?",
            ((key,) for key in puts),
        )
        db.executemany("DELETE FROM entries WHERE key = ?", ((key,) for key in gone))
        db.executemany(
            "INSERT INTO changes VALUES (?, ?, NULL, 0)", ((revision, key) for key in gone)
        )
        db.execute("UPDATE counters SET value = ? WHERE name = 'revision'", (revision,))
        if revision % _COMPACT_EVERY == 0:
            rows.compact(db, revision - self._changes_kept + 1)
        return revision

    # Watching -----------------------------------------------------------------------------

    def watch(self, prefix: str, from_revision: int) -> SqliteWatch:
        with self._using() as db:
            oldest = rows.counter(db, "oldest")
        if from_revision < oldest:
            raise Compacted(from_revision, oldest)
        self._begin_following()
        return SqliteWatch(self, prefix, from_revision)

    def take_changes(
        self, prefix: str, from_revision: int, timeout_s: float, is_wanted: Callable[[], bool]
    ) -> Changes | None:
        """Waits for changes from a revision on; None if there are none in time. For watches."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._failure is not None:
                self._reopen()
            with self._changed:
                if not is_wanted():
                    raise Closed("the watch is closed")
                found = self._changes(prefix, from_revision)
                left = deadline - time.monotonic()
                if found is not None or left <= 0:
                    return found
                self._changed.wait(left)

    def _begin_following(self) -> None:
        """Starts the thread that learns of other processes' commits, with the first watch."""
        with self._changed:
            if self._hints is None or self._follower is not None or self._is_closed:
                return
            self._hints.listen()
            self._follower = threading.Thread(
                target=self._follow, args=(self._hints,), name="firn-meta-follow", daemon=True
            )
            self._follower.start()

    def _follow(self, hints: Hints) -> None:
        while not self._is_closed:
            if not hints.wait(_IDLE_S):
                with suppress(FirnError):  # The next call of the store gets the error.
                    self.expire_sessions()
            self.wake_watches()

    def _changes(self, prefix: str, from_revision: int) -> Changes | None:
        if not self._is_shared and self._failure is None and self._committed < from_revision:
            return None
        with self._reading() as db, rows.transaction(db, "DEFERRED"):
            self._committed = rows.counter(db, "revision")
            if self._committed < from_revision:
                return None
            oldest = rows.counter(db, "oldest")
            if from_revision < oldest:
                raise Compacted(from_revision, oldest)
            upto = min(self._committed, from_revision + _TAKE_REVISIONS - 1)
            found = db.execute(
                "SELECT revision, key, value, create_revision FROM changes "
                "WHERE revision BETWEEN ? AND ? AND key >= ? AND key < ? ORDER BY revision, key",
                (from_revision, upto, prefix, rows.after(prefix)),
            ).fetchall()
        return Changes(revision=upto, events=tuple(map(rows.event, found)))

    def wake_watches(self) -> None:
        """Wakes every watch to check whether it was closed."""
        with self._changed:
            self._changed.notify_all()

    # Sessions -----------------------------------------------------------------------------

    def session(self, ttl_s: float) -> SqliteSession:
        ttl_ms = int(ttl_s * 1000)
        if ttl_ms < 1:
            raise InvalidArgument("ttl_s", f"must be at least a millisecond, not {ttl_s}")
        with self._writing() as db:
            made = db.execute(
                "INSERT INTO sessions (ttl_ms, deadline_ms) VALUES (?, ?)",
                (ttl_ms, self._clock.steady_ms() + ttl_ms),
            )
            return SqliteSession(self, int(made.lastrowid or 0))

    def resume_session(self, session_id: int) -> SqliteSession:
        return SqliteSession(self, session_id)

    def keep_alive(self, session_id: int) -> None:
        """See Session."""
        self.expire_sessions()
        with self._writing() as db:
            self._check_session(db, session_id)
            db.execute(
                "UPDATE sessions SET deadline_ms = ? + ttl_ms WHERE id = ?",
                (self._clock.steady_ms(), session_id),
            )

    def end_session(self, session_id: int) -> None:
        """See Session."""
        self._end_sessions("id = ?", session_id)

    def expire_sessions(self) -> None:
        """Deletes the keys of lapsed sessions. Every transaction does so first; the store's owner
        should also call it regularly, so that watchers see the end of a session soon."""
        self._end_sessions(f"NOT ({rows.IS_ALIVE})", self._clock.steady_ms())

    def _end_sessions(self, condition: str, number: int) -> None:
        """Deletes each session with its keys, in one revision per session."""
        select = f"SELECT id FROM sessions WHERE {condition} ORDER BY id"
        with self._using() as db:
            if db.execute(select, (number,)).fetchone() is None:
                return
        with self._writing() as db:
            for (session_id,) in db.execute(select, (number,)).fetchall():
                found = db.execute("SELECT key FROM entries WHERE session = ?", (session_id,))
                self._change(db, {}, [key for (key,) in found.fetchall()], 0)
                db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def _check_session(self, db: sqlite3.Connection, session_id: int) -> None:
        found = db.execute(
            f"SELECT 1 FROM sessions WHERE {rows.IS_ALIVE} AND id = ?2",
            (self._clock.steady_ms(), session_id),
        ).fetchone()
        if found is None:
            raise SessionLapsed(session_id)

    @property
    def failure(self) -> FirnError | None:
        """Why the next use reopens the database; None if it does not."""
        return self._failure

    def reopen(self) -> None:
        """Reopens the database if a commit failed; raises while the disk still refuses."""
        with self._using():
            pass

    # The connection -----------------------------------------------------------------------

    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        if self._hints is not None and self._follower is not None:
            self._hints.tell(also_self=True)
            self._follower.join()
        with ExitStack() as held:
            with suppress(TimedOut):  # Then a process stands still; closing needs nothing of it.
                held.enter_context(self._may_write())
            held.enter_context(self._changed)
            try:
                self._write_db.close()
                self._db.close()
            except sqlite3.Error as error:
                raise rows.typed(error, self._path) from error
            finally:
                if self._hints is not None:
                    self._hints.close()
        if self._writers is not None:
            self._writers.close()

    def _may_write(self) -> AbstractContextManager[Any]:
        """The lock of writers. Readers of a shared store do not wait for it."""
        return self._changed if self._writers is None else self._writers.held()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection for reading, after a failure reopened."""
        if self._failure is not None:
            self._reopen()
        with self._reading() as db:
            yield db

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for reading, exclusively for this thread."""
        with self._changed:
            if self._is_closed:
                raise Closed("the meta store is closed")
            try:
                yield self._db
            except sqlite3.Error as error:
                raise rows.typed(error, self._path) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is committed, durably, when the block ends without an error."""
        with self._may_write():
            if self._failure is not None:
                self._reopen()
            if self._is_closed:
                raise Closed("the meta store is closed")
            db = self._write_db
            try:
                with rows.transaction(db, "IMMEDIATE"):
                    yield db
            except sqlite3.Error as error:
                failure = rows.typed(error, self._path)
                if isinstance(failure, StorageFailed):
                    self._failure = failure
                    self.on_failure(failure)
                raise failure from error
            with self._changed:
                self._committed = max(self._committed, rows.counter(db, "revision"))
                self._changed.notify_all()
            if self._hints is not None:
                self._hints.tell()

    def _reopen(self) -> None:
        """Reopens the database after a failed commit, which may or may not be on the device.

        The write-ahead log, as it reads now, decides. A full checkpoint makes the decision durable:
        pages of a failed sync may be in the page cache but not on the device."""
        with self._may_write(), self._changed:
            if self._failure is None or self._is_closed:
                return
            for db in (self._write_db, self._db):
                with suppress(sqlite3.Error):
                    db.close()
            self._db = self._write_db = self._connect()
            if self._is_shared:
                self._db = self._connect()
            try:
                is_busy, _, _ = self._write_db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                raise rows.typed(error, self._path) from error
            if is_busy:
                raise TimedOut("another process keeps the meta store's log in use; try again")
            self._failure = None
            self._changed.notify_all()

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(
                self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise rows.typed(error, self._path) from error
        try:
            if not self._is_shared:
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
            version = rows.format_of(db)
            if version not in (None, rows.FORMAT):  # Before anything is changed.
                db.close()
                raise OtherFormat(rows.explained(version), where=str(self._path))
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            if version is None:
                db.executescript(f"BEGIN IMMEDIATE; {rows.SCHEMA} COMMIT;")
            self._committed = rows.counter(db, "revision")
        except sqlite3.Error as error:
            db.close()
            raise rows.typed(error, self._path) from error
        return db


class SqliteSession:
    """A Session of a SqliteMetaStore."""

    def __init__(self, store: SqliteMetaStore, session_id: int) -> None:
        self._store = store
        self.session_id = session_id

    def keep_alive(self) -> None:
        self._store.keep_alive(self.session_id)

    def close(self) -> None:
        self._store.end_session(self.session_id)


class SqliteWatch:
    """A Watch of a SqliteMetaStore."""

    def __init__(self, store: SqliteMetaStore, prefix: str, from_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._next_revision = from_revision
        self._is_closed = False

    def take(self, timeout_s: float) -> Changes | None:
        found = self._store.take_changes(
            self._prefix, self._next_revision, timeout_s, lambda: not self._is_closed
        )
        if found is not None:
            self._next_revision = found.revision + 1
        return found

    def close(self) -> None:
        self._is_closed = True
        self._store.wake_watches()


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _ignore_failure(_: FirnError) -> None:
    """The default: failures are not reported."""
