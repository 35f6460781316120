"""The node's key-value store: one RocksDB database in the data directory.

Writes go to RocksDB's log without a sync, since a synced write would hold the interpreter's lock
while the disk works. A caller that needs durability calls `sync`, which releases the lock; callers
that arrive while a sync is running share the next one. After a failed write RocksDB refuses all
further ones, so the store reopens the database before the next write.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from firnmq.disk.reserve import disk_bytes
from firnmq.errors import (
    Closed,
    Corruption,
    DiskFull,
    FirnError,
    StorageFailed,
    storage_failure,
)
from firnmq.eventlog import EventLogger

_log = EventLogger("disk")

_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_TOTAL_WRITE_BUFFER_BYTES = 48 * 1024 * 1024
_INDEX_BUFFER_COUNT = 16
_INDEX_BUFFERS_PER_TABLE = 8
"""The index has many small write buffers instead of one large one: keys come in no order, and the
search for a key's place in a buffer is three times as fast if the buffer fits into the processor's
cache. Several buffers become one table, so that there are not more tables."""
_INDEX_TABLES_MAX = 8
"""New tables of the index that are merged at once, twice as many as by default: each merge also
rewrites what the next level has of the same keys. A lookup asks every table that is not merged yet,
most of them by the filter alone."""
_BUFFERS_SHARE = 16
"""Write buffers take at most this fraction of a small disk. When the database is opened after a
crash, it writes their content to a table, which must fit in the reserve of a full disk."""
_MANIFEST_BYTES = 64 * 1024
"""Preallocation of the manifest; RocksDB's own default is 4 MiB."""
_WAL_BYTES_MAX = 256 * 1024 * 1024
_CLOSE_WAIT_S = 5.0
_READ_ATTEMPTS = 3
_RECLAIM_PAUSE_S = 30.0
_DELETED_RANGES_MAX = 256
"""Deleted ranges that are remembered individually; more are merged into one range per family."""
_REOPEN_PAUSE_S = 0.1
"""Between attempts to open a database that the disk refuses, so that frequent callers do not retry
all the time."""
_BUFFER_COUNT_MAX = 6
"""Write buffers of the other families; RocksDB stops all writes when so many are full."""
_STOPPED = "rocksdb.is-write-stopped"
_UNFLUSHED = "rocksdb.num-immutable-mem-table"
_UNCHECKED_BYTES_MAX = 512 * 1024
"""Written without asking whether RocksDB is behind; less than a write buffer."""
_STALL_PAUSE_S = 0.005
_BLOCK_CACHE_BYTES = 64 * 1024 * 1024
_LARGE_FAMILIES = 3
"""Memory is divided by so many: the rows of locations are few and small."""
_WHERE = "the key-value store"

T = TypeVar("T")


class Family(Enum):
    """Column families, by their content."""

    STATE = "state"
    """Deletions, group offsets, transactions, users."""
    INDEX = "index"
    """The four indexes and their checkpoints: derived, can be rebuilt from the log."""
    MESSAGES = "messages"
    """Batches of the RocksDB engine."""
    LOCATIONS = "locations"
    """Where frames of shared files are: derived up to the end of each file."""


KeyRange: TypeAlias = tuple[Family, bytes, bytes]
"""Keys of a family in [first, second)."""


class KvBatch:
    """Changes that are written atomically. Not safe with threads."""

    __slots__ = ("_batch", "_handles", "deleted", "has_state")

    def __init__(self, handles: dict[Family, Any]) -> None:
        self._batch = WriteBatch(raw_mode=True)
        self._handles = handles
        self.has_state = False
        """Whether it puts anything into Family.STATE."""
        self.deleted: list[KeyRange] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        if family is Family.STATE:
            self.has_state = True
        self._batch.put(key, value, self._handles[family])

    def put_many(self, family: Family, entries: list[tuple[bytes, bytes]]) -> None:
        if family is Family.STATE:
            self.has_state = True
        # Naming the family once instead of with every entry saves a third of the time.
        self._batch.set_default_column_family(self._handles[family])
        put = self._batch.put
        for key, value in entries:
            put(key, value)
        self._batch.set_default_column_family(None)  # It would keep the database open.

    def delete(self, family: Family, key: bytes) -> None:
        self._batch.delete(key, self._handles[family])

    def delete_range(self, family: Family, lower: bytes, upper: bytes) -> None:
        """Deletes every key in [lower, upper)."""
        self.deleted.append((family, lower, upper))
        self._batch.delete_range(lower, upper, self._handles[family])

    def __len__(self) -> int:
        return int(self._batch.len())


class _Generation:
    """One opening of the database, with every handle that must go before it can close."""

    def __init__(self, path: Path) -> None:
        self.db = Rdict(
            str(path),
            _options(buffer_bytes := _buffer_bytes(path)),
            {f.value: _family_options(f, buffer_bytes) for f in Family},
        )
        self.families = {f: self.db.get_column_family(f.value) for f in Family}
        self.handles = {f: self.db.get_column_family_handle(f.value) for f in Family}

    def wait_while_stalled(self) -> None:
        """Waits while flushes or merges are behind, before RocksDB itself would: it would wait with
        the interpreter's lock held, and the whole process would stand still."""
        while self.db.property_int_value(_STOPPED) or any(
            (self.families[family].property_int_value(_UNFLUSHED) or 0) >= _full_buffers_max(family)
            for family in Family
        ):
            time.sleep(_STALL_PAUSE_S)

    def close(self) -> None:
        """Closes every part, even if another fails; raises StorageFailed with the first error.

        Nothing may refer to a part afterwards, not even an error's traceback: one reference keeps
        the database locked.
        """
        parts: list[Any] = [*self.families.values(), self.db]
        self.handles.clear()
        self.families.clear()
        del self.db
        failure = ""
        while parts:
            try:
                parts.pop(0).close()
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                failure = failure or str(error)
        if failure:
            raise _storage_failure(OSError(failure))


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
        self._generation: _Generation | None = self._open()
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
        self._unchecked_bytes = 0
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
                raise StorageFailed(_WHERE, OSError("it was reopened amid a change"))
            batch = KvBatch(generation.handles)
            yield batch
            try:
                if len(batch):
                    self._unchecked_bytes += batch._batch.size_in_bytes()
                    if self._unchecked_bytes > _UNCHECKED_BYTES_MAX:
                        self._unchecked_bytes = 0
                        generation.wait_while_stalled()
                    generation.db.write(batch._batch)
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                raise self._failed(error) from error
            finally:
                del batch._batch
            with self._gate:
                self._write_seq += 1
                if batch.has_state:
                    self._state_seq = self._write_seq
                if batch.deleted:
                    self._deleted = _merged(self._deleted + batch.deleted)

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
                raise StorageFailed(_WHERE, OSError("it was reopened before this write was synced"))
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
        raise self.failure or StorageFailed(_WHERE, OSError("it is reopened again and again"))

    def sync_late(self) -> None:
        """Syncs writes that no caller waits for; reopens the database first if it had failed."""
        with self._sync_lock:
            if self._failure is not None:
                self._reopen()
            if self._write_seq > self._durable_seq:
                self._flush()

    def _flush(self) -> None:
        reached = self._write_seq
        with self._using() as generation:
            try:
                generation.db.flush_wal(True)
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                raise self._failed(error) from error
        self._synced_seq = reached
        self.sync_count += 1

    # Whole database -------------------------------------------------------------------------

    def property_int(self, family: Family, name: str) -> int:
        with self._using() as generation:
            return int(generation.families[family].property_int_value(name) or 0)

    def compact(self, family: Family) -> None:
        """Writes memory tables out and merges the family's files. For measurements."""
        with self._using() as generation:
            generation.families[family].flush(True)
            generation.families[family].compact_range(None, None)

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
        with self._gate:
            ranges, self._deleted = self._deleted, []
        try:
            while ranges:
                family, lower, upper = ranges[-1]
                with self._reading() as generation:
                    generation.families[family].flush(True)
                    generation.families[family].compact_range(lower, upper)
                ranges.pop()
        except FirnError:
            self._reclaim_after_s = time.monotonic() + _RECLAIM_PAUSE_S
            raise
        finally:
            with self._gate:
                self._deleted = _merged(self._deleted + ranges)

    def files(self) -> list[dict[str, Any]]:
        with self._using() as generation:
            return list(generation.db.live_files())

    def close(self) -> None:
        with self._exclusive(_CLOSE_WAIT_S):
            generation, self._generation = self._generation, None
        if generation is None:
            return
        try:
            generation.close()
        except DiskFull as error:  # It had no space to write out what it has in memory.
            if self._failure is not None or self._write_seq > self._durable_seq:
                raise
            # The next opening reads all of it from the log.
            _log.warning("database_closed_without_space", path=self._path, error=str(error))

    @property
    def _durable_seq(self) -> int:
        """Writes up to this one are durable, or were counted as lost when the database failed."""
        return max(self._synced_seq, self._doubtful_seq)

    def _open(self) -> _Generation:
        try:
            generation = _Generation(self._path)
            self.opened_count += 1
            return generation
        except Exception as error:  # rocksdict raises plain Exception for every failure.
            raise self._typed(error) from error

    @contextmanager
    def _reading(self) -> Iterator[_Generation]:
        with self._using() as generation:
            try:
                yield generation
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                raise self._typed(error) from error

    @property
    def has_failed(self) -> bool:
        """Whether the next write reopens the database, which is slow."""
        return self._failure is not None

    @property
    def failure(self) -> StorageFailed | None:
        """Why the next write reopens the database; None if it does not."""
        error = self._failure
        return None if error is None else _storage_failure(error)

    def _typed(self, error: Exception) -> FirnError:
        if "corruption" in str(error).lower():
            return Corruption(str(error), where=str(self._path))
        return _storage_failure(error)

    @contextmanager
    def _using(self, *, for_write: bool = False) -> Iterator[_Generation]:
        if self._failure is not None and (for_write or self._generation is None):
            self._reopen()
        with self._gate:
            while self._changing:
                self._gate.wait()
            generation = self._generation
            if generation is None:
                if self._failure is not None:
                    raise _storage_failure(self._failure)
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
                raise _storage_failure(self._failure)
            generation, self._generation = self._generation, None
            self._doubtful_seq = self._write_seq
            if generation is not None:
                with suppress(
                    StorageFailed
                ):  # Expected: the failure is the reason for the reopening.
                    generation.close()
            try:
                self._generation = self._open()
            except StorageFailed as error:
                self._reopen_after_s = time.monotonic() + _REOPEN_PAUSE_S
                self._failure = error.cause
                self.on_failure(error)
                raise
            self._failure = None

    def _failed(self, error: Exception) -> StorageFailed:
        """Marks the database as failed until it is reopened."""
        self._failure = error
        failure = _storage_failure(error)
        self.on_failure(failure)
        return failure


def _storage_failure(error: BaseException) -> StorageFailed:
    """The right StorageFailed for an error of RocksDB, which reports errno only as text."""
    if "no space left" in str(error).lower():
        return DiskFull(_WHERE, error)
    return storage_failure(_WHERE, error)


def _buffer_bytes(path: Path) -> int:
    """The limit of all write buffers together."""
    path.mkdir(parents=True, exist_ok=True)
    return min(_TOTAL_WRITE_BUFFER_BYTES, disk_bytes(path) // _BUFFERS_SHARE)


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


def _options(buffer_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_db_write_buffer_size(buffer_bytes)
    options.set_manifest_preallocation_size(_MANIFEST_BYTES)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_max_open_files(64)
    options.set_keep_log_file_num(2)
    options.set_max_background_jobs(2)
    return options


def _family_options(family: Family, buffer_bytes: int) -> Options:
    options = Options(raw_mode=True)
    share_bytes = min(_WRITE_BUFFER_BYTES, buffer_bytes // _LARGE_FAMILIES)
    if family is Family.INDEX:
        share_bytes //= _INDEX_BUFFER_COUNT
        options.set_min_write_buffer_number_to_merge(_INDEX_BUFFERS_PER_TABLE)
        options.set_level_zero_file_num_compaction_trigger(_INDEX_TABLES_MAX)
    options.set_max_write_buffer_number(_buffer_count_max(family))
    options.set_write_buffer_size(share_bytes)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache())
    table.set_bloom_filter(10, False)
    # In the cache, so that memory stays bounded, and in small partitions: the filter of a large
    # table is megabytes, and reading it again for every lookup takes a millisecond.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(table)
    return options


def _buffer_count_max(family: Family) -> int:
    return 2 * _INDEX_BUFFER_COUNT if family is Family.INDEX else _BUFFER_COUNT_MAX


def _full_buffers_max(family: Family) -> int:
    """Writers wait at so many full buffers, which leaves some for those that did not look yet."""
    return _buffer_count_max(family) // 2


def _block_cache() -> Cache:
    return Cache(_BLOCK_CACHE_BYTES // _LARGE_FAMILIES)
