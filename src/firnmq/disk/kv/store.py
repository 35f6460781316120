"""The node's key-value store: one RocksDB database in the data directory, and its journal.

Changes go into the journal and into RocksDB's memory. A caller that needs durability calls `sync`;
callers that arrive while a sync is running share the next one. Once enough is in memory, a thread
of the store writes it into tables and drops the journal's files. After a failed write the store
rewrites the journal and reopens the database before the next write.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from rocksdict import ReadOptions

from firnmq.disk.kv.batch import Family, KeyRange, KvBatch
from firnmq.disk.kv.database import (
    WHERE,
    Database,
    database_failure,
    typed_failure,
    unflushed_bytes_max,
)
from firnmq.disk.kv.journal import Journal
from firnmq.errors import Closed, DiskFull, FirnError, StorageFailed
from firnmq.eventlog import EventLogger

_log = EventLogger("disk")

_CLOSE_WAIT_S = 5.0
_READ_ATTEMPTS = 3
_RECLAIM_PAUSE_S = 30.0
_DELETED_RANGES_MAX = 256
"""Deleted ranges that are remembered individually; more are merged into one range per family."""
_REOPEN_PAUSE_S = 0.1
"""Between attempts to open a database that the disk refuses, so that frequent callers do not retry
all the time."""
_FLUSH_SHARE = 3
"""This fraction of what may be in memory is written into tables at once, while the rest fills."""

T = TypeVar("T")


class KeyValueStore:
    """Ordered bytes to bytes. Safe with threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gate = threading.Condition(threading.Lock())
        self._users = 0
        self._changing = False
        self._failure: BaseException | None = None
        self._reopen_after_s = 0.0
        self.opened_count = 0
        """How often the database was opened: each time, unsynced writes may have been lost."""
        self._limit_bytes = unflushed_bytes_max(path)
        self._journal = Journal(path)
        self._room = threading.Condition(threading.Lock())
        """Held while a change goes into the journal and into memory, so that both have the same
        order. Taken after every other lock; waiting for room releases it."""
        self._unflushed_bytes = 0
        """In memory, and not in a table yet."""
        self._unflushed: set[Family] = set()
        self._is_flushing = False
        self._generation: Database | None = self._open()
        self._sync_lock = threading.Lock()
        self.row_lock = threading.Lock()
        """Held around each write of rows that are changed by read-modify-write, and around such a
        change: a group's offsets. Taken before any other lock of this store."""
        self._write_seq = 0
        self._state_seq = 0
        """The last write that put anything into Family.STATE."""
        self._synced_seq = 0
        self._doubtful_seq = 0
        """Unsynced writes up to this one may have been lost when the database failed: pages of a
        failed sync may be in the page cache but not on the device."""
        self.sync_count = 0
        self._deleted: list[KeyRange] = []
        """Deleted since the database was opened, and perhaps still in its files."""
        self._reclaim_after_s = 0.0
        self.on_failure: Callable[[FirnError], None] = _ignore_failure
        """Called whenever the database refuses a write or cannot be reopened."""

    # Reading ------------------------------------------------------------------------------

    def get(self, family: Family, key: bytes) -> bytes | None:
        with self._reading() as generation:
            value: bytes | None = generation.families[family].get(key)
            return value

    def floor(self, family: Family, lower: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        """The entry with the greatest key in [lower, key], if any."""
        with self._reading() as generation:
            iterator = generation.families[family].iter()
            try:
                iterator.seek_for_prev(key)
                if not iterator.valid():
                    iterator.status()
                    return None
                found: bytes = iterator.key()
                return (found, iterator.value()) if found >= lower else None
            finally:
                del iterator  # An error's traceback would keep it, and the database locked.

    def items(
        self,
        family: Family,
        lower: bytes,
        upper: bytes,
        limit: int = 1_000_000_000,
        max_bytes: int | None = None,
    ) -> list[tuple[bytes, bytes]]:
        """Entries with lower <= key < upper in key order, at most `limit` of them.

        With `max_bytes`, none after the one whose value brings the sum to that.
        """
        found: list[tuple[bytes, bytes]] = []
        room = math.inf if max_bytes is None else max_bytes
        with self._reading() as generation:
            options = ReadOptions()
            options.set_iterate_upper_bound(upper)
            iterator = generation.families[family].iter(options)
            try:
                iterator.seek(lower)
                while len(found) < limit and room > 0 and iterator.valid():
                    value = iterator.value()
                    found.append((iterator.key(), value))
                    room -= len(value)
                    iterator.next()
                iterator.status()
            finally:
                del iterator  # An error's traceback would keep it, and the database locked.
        return found

    # Writing ------------------------------------------------------------------------------

    @contextmanager
    def batch(self, opened_count: int | None = None) -> Iterator[KvBatch]:
        """A batch that is written, unsynced, when the block ends without an error.

        With an `opened_count` it is part of a change that began then: StorageFailed if the database
        was reopened since.
        """
        with self._using(for_write=True) as generation:
            if opened_count is not None and opened_count != self.opened_count:
                raise StorageFailed(WHERE, OSError("it was reopened amid a change"))
            batch = KvBatch(generation.handles)
            try:
                yield batch
                if len(batch):
                    self._write(generation, batch)
            finally:
                batch.release()

    def _write(self, generation: Database, batch: KvBatch) -> None:
        with self._room:
            self._wait_for_room()
            try:
                self._journal.append(batch.changes, may_wait=batch.may_wait)
                generation.write(batch.changes_in_memory)
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                raise self._failed(error) from error
            self._unflushed_bytes += batch.memory_bytes
            self._unflushed |= batch.families
            self._write_seq += 1
            if batch.has_state:
                self._state_seq = self._write_seq
            if batch.deleted:
                self._deleted = _merged(self._deleted + batch.deleted)
            self._flush_if_much()

    def _wait_for_room(self) -> None:
        """Waits while tables are written more slowly than changes come."""
        while self._unflushed_bytes >= self._limit_bytes and self._is_flushing:
            self._room.wait()
        if self._failure is not None:
            raise database_failure(self._failure)

    @property
    def write_count(self) -> int:
        """Batches that were written."""
        return self._write_seq

    def sync(self) -> None:
        """Makes every write that has returned durable, or raises."""
        self._sync_up_to(self._write_seq)

    def _sync_up_to(self, wanted: int) -> None:
        with self._sync_lock:
            if self._synced_seq >= wanted:  # Another caller's sync began after our write.
                return
            if self._failure is not None:
                # After a failed sync a second one would report success for lost pages.
                self._reopen()
            if self._doubtful_seq >= wanted:
                raise StorageFailed(WHERE, OSError("it was reopened before this write was synced"))
            self._flush()

    def read_durable(self, read: Callable[[], T]) -> T:
        """The result of `read` over rows that are written under `row_lock`, once it is durable.

        A write whose sync failed may or may not survive: the database is reopened, which makes the
        surviving writes durable, and then read again. Not for callers that hold `row_lock`.
        """
        for _ in range(_READ_ATTEMPTS):
            self.reopen()
            opened_count = self.opened_count
            found = read()
            with self.row_lock:  # A write that `read` has seen is counted when the lock is free.
                state_seq = self._state_seq
            if state_seq > self._doubtful_seq:
                with suppress(StorageFailed):
                    self._sync_up_to(state_seq)
            if opened_count == self.opened_count and self._failure is None:
                return found
        raise self.failure or StorageFailed(WHERE, OSError("it is reopened again and again"))

    def sync_late(self) -> None:
        """Syncs writes that no caller waits for; reopens the database first if it had failed."""
        with self._sync_lock:
            if self._failure is not None:
                self._reopen_after_s = 0.0  # This caller comes seldom.
                self._reopen()
            if self._write_seq > self._durable_seq:
                self._flush()

    def _flush(self) -> None:
        with self._using():
            try:
                with self._room:
                    reached = self._write_seq
                    file = self._journal.write_out()
                if file is not None:
                    file.sync()
            except OSError as error:
                raise self._failed(error) from error
        self._synced_seq = reached
        self.sync_count += 1

    # Writing tables ------------------------------------------------------------------------

    def _flush_if_much(self) -> None:
        """Starts a thread that writes tables, if there is enough for it. `_room` is held."""
        if self._is_flushing or self._unflushed_bytes < self._limit_bytes // _FLUSH_SHARE:
            return
        self._is_flushing = True
        threading.Thread(target=self._flush_tables, name="firn-kv-flush", daemon=True).start()

    def _flush_tables(self) -> None:
        """Writes what is in memory into tables, and drops the journal of it."""
        try:
            while self._flush_once():
                pass
        except FirnError:
            pass  # The next write reopens the database, or fails.
        finally:
            with self._room:
                self._is_flushing = False
                self._room.notify_all()

    def _flush_once(self) -> bool:
        """Whether there is enough for another time."""
        self.sync()  # Without the lock that writers wait for.
        with self._sync_lock, self._using() as generation, self._room:
            if self._failure is not None:
                return False
            opened_count = self.opened_count
            families, self._unflushed = self._unflushed, set()
            flushing_bytes = self._unflushed_bytes
            try:
                self._journal.switch()
                generation.begin_flush(families)
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                raise self._failed(error) from error
            done = self._journal.complete_files()
        with self._using() as generation:
            if self.opened_count != opened_count:
                return False
            try:
                generation.finish_flush(families)
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                raise self._failed(error) from error
            self._journal.remove(done)
            with self._room:
                self._unflushed_bytes -= flushing_bytes
                self._room.notify_all()
                return self._unflushed_bytes >= self._limit_bytes // _FLUSH_SHARE

    # Whole database -------------------------------------------------------------------------

    def property_int(self, family: Family, name: str) -> int:
        with self._using() as generation:
            return int(generation.families[family].property_int_value(name) or 0)

    def compact(self, family: Family) -> None:
        """Writes memory tables out and merges the family's files. For measurements."""
        self._merge(family, None, None)

    @property
    def has_deleted(self) -> bool:
        """Whether `reclaim` may free space, and has not just failed."""
        return bool(self._deleted) and time.monotonic() >= self._reclaim_after_s

    def reclaim(self) -> None:
        """Frees the space of deleted ranges now. RocksDB does so by itself, but late.

        Files that a range covers completely are removed. A file that it covers in part is
        rewritten without it, which needs temporary space. Raises StorageFailed if that fails; the
        caller may retry after a pause.
        """
        with self._room:
            ranges, self._deleted = self._deleted, []
        try:
            while ranges:
                family, lower, upper = ranges[-1]
                self._merge(family, lower, upper)
                ranges.pop()
        except FirnError:
            self._reclaim_after_s = time.monotonic() + _RECLAIM_PAUSE_S
            raise
        finally:
            with self._room:
                self._deleted = _merged(self._deleted + ranges)

    def journal_synced_lengths(self) -> dict[str, int]:
        """How much of each file of the journal is on the device; −1: all of it."""
        return self._journal.synced_lengths()

    def _merge(self, family: Family, lower: bytes | None, upper: bytes | None) -> None:
        """Writers wait: RocksDB flushes for it, which no change may do that the journal lacks."""
        self.sync()
        with self._sync_lock, self._reading() as generation, self._room:
            self._journal.switch()
            generation.flush({family})
            generation.families[family].compact_range(lower, upper)

    def files(self) -> list[dict[str, Any]]:
        with self._using() as generation:
            return list(generation.db.live_files())

    def close(self) -> None:
        with self._room:
            while self._is_flushing:
                self._room.wait()
        with self._exclusive(_CLOSE_WAIT_S):
            generation, self._generation = self._generation, None
        if generation is None:
            return
        is_journal_durable = True
        try:
            if self._failure is None:
                self._journal.switch()
            else:
                self._journal.rewrite()
        except OSError:
            is_journal_durable = False
        try:
            generation.close()
        except DiskFull as error:  # It had no space to write out what it has in memory.
            if not is_journal_durable:
                raise
            # The next opening reads all of it from the journal.
            _log.warning("database_closed_without_space", path=self._path, error=str(error))
        else:
            self._journal.discard()
        finally:
            self._journal.close()

    @property
    def _durable_seq(self) -> int:
        """Writes up to this one are durable, or were counted as lost when the database failed."""
        return max(self._synced_seq, self._doubtful_seq)

    def _open(self) -> Database:
        try:
            generation = Database(self._path)
        except Exception as error:  # rocksdict raises plain Exception for every failure.
            raise typed_failure(error, self._path) from error
        try:
            self._journal.rewrite()  # After RocksDB has locked the directory.
            self._repeat_journal(generation)
        except Exception as error:
            failure = typed_failure(error, self._path)
            with suppress(StorageFailed):
                generation.close()
            raise failure from None
        self.opened_count += 1
        return generation

    def _repeat_journal(self, generation: Database) -> None:
        """Brings what the journal holds into memory; it is durable."""
        self._unflushed_bytes = 0
        for changes in self._journal.records():
            batch = KvBatch(generation.handles)
            try:
                batch.repeat(changes)
                generation.write(batch.changes_in_memory)
            finally:
                batch.release()
            self._unflushed_bytes += batch.memory_bytes
            self._unflushed |= batch.families
            if self._unflushed_bytes >= self._limit_bytes:
                generation.flush(self._unflushed)
                self._unflushed_bytes = 0

    @contextmanager
    def _reading(self) -> Iterator[Database]:
        with self._using() as generation:
            try:
                yield generation
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                raise typed_failure(error, self._path) from error

    @property
    def has_failed(self) -> bool:
        """Whether the next write reopens the database, which is slow."""
        return self._failure is not None

    @property
    def failure(self) -> StorageFailed | None:
        """Why the next write reopens the database; None if it does not."""
        error = self._failure
        return None if error is None else database_failure(error)

    @contextmanager
    def _using(self, *, for_write: bool = False) -> Iterator[Database]:
        if self._failure is not None and (for_write or self._generation is None):
            self._reopen()
        with self._gate:
            while self._changing:
                self._gate.wait()
            generation = self._generation
            if generation is None:
                if self._failure is not None:
                    raise database_failure(self._failure)
                raise Closed("the key-value store is closed")
            self._users += 1
        try:
            yield generation
        finally:
            with self._gate:
                self._users -= 1
                if self._users == 0 and self._changing:
                    self._gate.notify_all()

    @contextmanager
    def _exclusive(self, timeout_s: float | None = None) -> Iterator[None]:
        """Excludes all other users of the database. Waits for those in progress, at most
        `timeout_s` if given: an interrupted user may never be uncounted."""
        with self._gate:
            while self._changing:
                self._gate.wait()
            self._changing = True
            self._gate.wait_for(lambda: self._users == 0, timeout_s)
        try:
            yield
        finally:
            with self._gate:
                self._changing = False
                self._gate.notify_all()

    def reopen(self) -> None:
        """Reopens the database if it refuses writes; raises while the disk still refuses."""
        if self._failure is not None:
            self._reopen()

    def _reopen(self) -> None:
        """Reopens the database after a failed write; raises while the disk still refuses."""
        with self._exclusive():
            if self._failure is None:
                return
            if time.monotonic() < self._reopen_after_s:
                raise database_failure(self._failure)
            try:
                self._journal.rewrite()  # First: closing writes tables, which must not be ahead.
                self._doubtful_seq = self._write_seq
                generation, self._generation = self._generation, None
                if generation is not None:
                    with suppress(StorageFailed):  # Expected: that is why it is reopened.
                        generation.close()
                self._generation = self._open()
            except OSError as error:
                self._reopen_after_s = time.monotonic() + _REOPEN_PAUSE_S
                self._failure = error
                raise self._failed(error) from error
            except StorageFailed as error:
                self._reopen_after_s = time.monotonic() + _REOPEN_PAUSE_S
                self._failure = error.cause
                self.on_failure(error)
                raise
            self._failure = None

    def _failed(self, error: Exception) -> StorageFailed:
        """Marks the database as failed until it is reopened."""
        self._failure = error
        failure = database_failure(error)
        self.on_failure(failure)
        return failure


def _merged(ranges: list[KeyRange]) -> list[KeyRange]:
    """The ranges; if there are too many, one covering range per family."""
    if len(ranges) <= _DELETED_RANGES_MAX:
        return ranges
    by_family: dict[Family, tuple[bytes, bytes]] = {}
    for family, lower, upper in ranges:
        first, last = by_family.get(family, (lower, upper))
        by_family[family] = min(first, lower), max(last, upper)
    return [(family, lower, upper) for family, (lower, upper) in by_family.items()]


def _ignore_failure(_: FirnError) -> None:
    """The default: failures are not reported."""
