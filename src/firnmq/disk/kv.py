"""The node's key-value store: one RocksDB database in the data directory.

Writes go to RocksDB's log without a sync, since a synced write would hold the interpreter's lock
while the disk works; whoever needs durability calls `sync`, which releases it, and callers that
arrive while a sync is running share the next one. After a failed write RocksDB refuses all
further ones, so the store reopens the database before the next write.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

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

from firnmq.errors import Closed, Corruption, FirnError, StorageFailed, storage_failure

_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_TOTAL_WRITE_BUFFER_BYTES = 64 * 1024 * 1024
_WAL_BYTES_MAX = 256 * 1024 * 1024
_CLOSE_PATIENCE_S = 5.0
_REOPEN_PAUSE_S = 0.1
"""Between attempts to open a database that the disk refuses, so that eager callers do not spend
all the time there is on trying."""
_BLOCK_CACHE_BYTES = 64 * 1024 * 1024


class Family(Enum):
    """Column families, by what is in them."""

    STATE = "state"
    """Deletions, group offsets, transactions, users."""
    INDEX = "index"
    """The four indexes and their checkpoints: derived, can be rebuilt from the log."""
    MESSAGES = "messages"
    """Batches of the RocksDB engine."""


class KvBatch:
    """Changes that are written together or not at all. Not for sharing between threads."""

    __slots__ = ("_batch", "_handles")

    def __init__(self, handles: dict[Family, Any]) -> None:
        self._batch = WriteBatch(raw_mode=True)
        self._handles = handles

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self._batch.put(key, value, self._handles[family])

    def put_many(self, family: Family, entries: list[tuple[bytes, bytes]]) -> None:
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
        self._batch.delete_range(lower, upper, self._handles[family])

    def __len__(self) -> int:
        return int(self._batch.len())


class _Generation:
    """One opening of the database, with every handle that must go before it can close."""

    def __init__(self, path: Path) -> None:
        self.db = Rdict(str(path), _options(), {f.value: _family_options() for f in Family})
        self.families = {f: self.db.get_column_family(f.value) for f in Family}
        self.handles = {f: self.db.get_column_family_handle(f.value) for f in Family}

    def close(self) -> None:
        """Closes every part, whatever another says; StorageFailed gives what the first said.

        Nothing may refer to a part afterwards, not even an error's traceback: a single one left
        keeps the database locked.
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
            raise storage_failure("the key-value store", OSError(failure))


class KeyValueStore:
    """Ordered bytes to bytes. Safe with threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gate = threading.Condition(threading.Lock())
        self._users = 0
        self._changing = False
        self._failure: BaseException | None = None
        self._reopen_after_s = 0.0
        self._generation: _Generation | None = self._open()
        self._sync_lock = threading.Lock()
        self._write_seq = 0
        self._synced_seq = 0
        self._doubtful_seq = 0
        """Writes up to this one that were not synced may have been lost when the database failed:
        what a failed sync leaves in the page cache need not be on the device."""
        self.sync_count = 0

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
    def batch(self) -> Iterator[KvBatch]:
        """A batch that is written, unsynced, when the block ends without an error."""
        with self._using(for_write=True) as generation:
            batch = KvBatch(generation.handles)
            yield batch
            try:
                if len(batch):
                    generation.db.write(batch._batch)
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                self._failure = error
                raise storage_failure("the key-value store", error) from error
            finally:
                del batch._batch
            with self._gate:
                self._write_seq += 1

    def sync(self) -> None:
        """Makes every write that has returned durable, or raises."""
        wanted = self._write_seq
        with self._sync_lock:
            if self._synced_seq >= wanted:  # Another caller's sync began after our write.
                return
            if self._doubtful_seq >= wanted:
                raise StorageFailed(
                    "the key-value store", OSError("it was reopened before this write was synced")
                )
            self._flush()

    def sync_late(self) -> None:
        """Syncs writes that nobody waits for; brings the database back first if it had failed."""
        with self._sync_lock:
            if self._failure is not None:
                self._reopen()
            if self._write_seq > max(self._synced_seq, self._doubtful_seq):
                self._flush()

    def _flush(self) -> None:
        reached = self._write_seq
        with self._using() as generation:
            try:
                generation.db.flush_wal(True)
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                self._failure = error
                raise storage_failure("the key-value store", error) from error
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

    def files(self) -> list[dict[str, Any]]:
        with self._using() as generation:
            return list(generation.db.live_files())

    def close(self) -> None:
        with self._exclusive(_CLOSE_PATIENCE_S):
            generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()

    def _open(self) -> _Generation:
        try:
            return _Generation(self._path)
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
        """Whether the next write opens the database anew, which takes its time."""
        return self._failure is not None

    def _typed(self, error: Exception) -> FirnError:
        if "corruption" in str(error).lower():
            return Corruption(str(error), where=str(self._path))
        return storage_failure("the key-value store", error)

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
                    raise storage_failure("the key-value store", self._failure)
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
    def _exclusive(self, patience_s: float | None = None) -> Iterator[None]:
        """Nobody else uses the database meanwhile; with patience, who does not end is not waited
        for: an interrupt at an unlucky moment can leave a user counted that is gone."""
        with self._gate:
            while self._changing:
                self._gate.wait()
            self._changing = True
            self._gate.wait_for(lambda: self._users == 0, patience_s)
        try:
            yield
        finally:
            with self._gate:
                self._changing = False
                self._gate.notify_all()

    def _reopen(self) -> None:
        """Opens the database anew after a failed write; raises while the disk still refuses."""
        with self._exclusive():
            if self._failure is None:
                return
            if time.monotonic() < self._reopen_after_s:
                raise storage_failure("the key-value store", self._failure)
            generation, self._generation = self._generation, None
            self._doubtful_seq = self._write_seq
            if generation is not None:
                with suppress(StorageFailed):  # Of course: that is why it is closed.
                    generation.close()
            try:
                self._generation = self._open()
            except StorageFailed as error:
                self._reopen_after_s = time.monotonic() + _REOPEN_PAUSE_S
                self._failure = error.cause
                raise
            self._failure = None


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_db_write_buffer_size(_TOTAL_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_max_open_files(64)
    options.set_keep_log_file_num(2)
    options.set_max_background_jobs(2)
    return options


def _family_options() -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache())
    table.set_bloom_filter(10, False)
    # In the cache, so that memory stays bounded, and in small partitions: the filter of a large
    # table is megabytes, and reading it anew for every lookup takes a millisecond.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(table)
    return options


def _block_cache() -> Cache:
    return Cache(_BLOCK_CACHE_BYTES // len(Family))
