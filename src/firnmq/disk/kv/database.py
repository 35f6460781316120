"""One opening of the RocksDB database: its options, column families and handles."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from firnmq.disk.kv.batch import Family
from firnmq.disk.reserve import disk_bytes
from firnmq.errors import Corruption, DiskFull, FirnError, StorageFailed, storage_failure

WHERE = "the key-value store"

_UNFLUSHED_BYTES_MAX = 48 * 1024 * 1024
_BUFFERS_SHARE = 16
"""What is not in a table yet takes at most this fraction of a small disk: when the database is
opened after a crash, the journal is written once more, which must fit in the reserve of a full
disk."""
_INDEX_BUFFERS_MAX = 64
"""The index has many small write buffers instead of one large one: keys come in no order, and the
search for a key's place in a buffer is three times as fast if the buffer fits into the processor's
cache. All of them become one table, when the store flushes."""
_INDEX_BUFFERS_USED = 48
_INDEX_TABLES_MAX = 8
"""New tables of the index that are merged at once, twice as many as by default: each merge also
rewrites what the next level has of the same keys. A lookup asks every table that is not merged yet,
most of them by the filter alone."""
_MANIFEST_BYTES = 64 * 1024
"""Preallocation of the manifest; RocksDB's own default is 4 MiB."""
_BLOCK_CACHE_BYTES = 64 * 1024 * 1024
_LARGE_FAMILIES = 3
"""Memory is divided by so many: the rows of locations are few and small."""
_STALL_PAUSE_S = 0.005
_STALLED = "Result incomplete"
_FLUSH_PAUSE_S = 0.002
_PENDING = "rocksdb.mem-table-flush-pending"
_RUNNING = "rocksdb.num-running-flushes"
_ERRORS = "rocksdb.background-errors"
_OPTIONS_DIRECTORY = Path(__file__).with_name("rocksdb_options")


def unflushed_bytes_max(path: Path) -> int:
    """How much may be in write buffers and in the journal."""
    path.mkdir(parents=True, exist_ok=True)
    return min(_UNFLUSHED_BYTES_MAX, disk_bytes(path) // _BUFFERS_SHARE)


class Database:
    """One opening of the database, with every handle that must go before it can close."""

    def __init__(self, path: Path) -> None:
        limit_bytes = unflushed_bytes_max(path)
        self.db = Rdict(
            str(path),
            _options(),
            {family.value: _family_options(family, limit_bytes) for family in Family},
        )
        self.families = {f: self.db.get_column_family(f.value) for f in Family}
        self.handles = {f: self.db.get_column_family_handle(f.value) for f in Family}

    def write(self, batch: WriteBatch) -> None:
        """Writes into memory alone; the journal has the changes already.

        RocksDB would wait for merges that are behind with the interpreter's lock held. It is told
        to refuse the write instead, which is then repeated.
        """
        while True:
            try:
                self.db.write(batch, _IN_MEMORY)
                return
            except Exception as error:  # rocksdict raises plain Exception for every failure.
                if _STALLED not in str(error):
                    raise
            time.sleep(_STALL_PAUSE_S)

    def flush(self, families: Iterable[Family]) -> None:
        """Writes what the families have in memory into tables, durably.

        A change that the journal has not durably must not be written before this returns: a power
        failure could leave a part of it.
        """
        for family in families:
            self.families[family].flush(True)

    def begin_flush(self, families: Iterable[Family]) -> None:
        """Begins to write what the families have in memory now into tables. Changes from now on are
        not among it."""
        for family in families:
            self.families[family].flush(False)

    def finish_flush(self, families: Iterable[Family]) -> None:
        """Waits until what was begun is durable. RocksDB would do so for later changes as well."""
        for family in families:
            # In this order: a flush is running before it stops being pending.
            while self._count(family, _PENDING) or self._count(family, _RUNNING):
                time.sleep(_FLUSH_PAUSE_S)
        if self._count(Family.STATE, _ERRORS):
            self.flush(families)  # Raises what went wrong in the background.

    def _count(self, family: Family, name: str) -> int:
        return int(self.families[family].property_int_value(name) or 0)

    def close(self) -> None:
        """Closes every part, even if another fails; raises StorageFailed with the first error.

        Writes what is in memory into tables. Nothing may refer to a part afterwards, not even an
        error's traceback: one reference keeps the database locked.
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
            raise database_failure(OSError(failure))


def database_failure(error: BaseException) -> StorageFailed:
    """The right StorageFailed for an error of RocksDB, which reports errno only as text."""
    if "no space left" in str(error).lower():
        return DiskFull(WHERE, error)
    return storage_failure(WHERE, error)


def typed_failure(error: Exception, path: Path) -> FirnError:
    """The right error for what RocksDB or the system raised."""
    if isinstance(error, FirnError):
        return error
    if not isinstance(error, OSError) and "corruption" in str(error).lower():
        return Corruption(str(error), where=str(path))
    return database_failure(error)


def _unlogged() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]
    options.no_slowdown = True
    return options


_IN_MEMORY = _unlogged()


def _options() -> Options:
    # The file turns RocksDB's own event log off: a write into it would wait for a slow disk with
    # the interpreter's lock held.
    options, _ = Options.load_latest(str(_OPTIONS_DIRECTORY))
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_manifest_preallocation_size(_MANIFEST_BYTES)
    options.set_max_open_files(64)
    options.set_keep_log_file_num(2)
    options.set_max_background_jobs(2)
    return options


def _family_options(family: Family, limit_bytes: int) -> Options:
    """Options under which RocksDB never flushes by itself: see `Database.flush`."""
    options = Options(raw_mode=True)
    if family is Family.INDEX:
        options.set_write_buffer_size(limit_bytes // _INDEX_BUFFERS_USED)
        options.set_max_write_buffer_number(_INDEX_BUFFERS_MAX)
        options.set_min_write_buffer_number_to_merge(_INDEX_BUFFERS_MAX - 1)
        options.set_level_zero_file_num_compaction_trigger(_INDEX_TABLES_MAX)
    else:
        options.set_write_buffer_size(4 * limit_bytes)
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


def _block_cache() -> Cache:
    return Cache(_BLOCK_CACHE_BYTES // _LARGE_FAMILIES)
