"""Rows of a table's files, for executors: Parquet with pyarrow, and no catalog."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firnmq.lake.plans.plan import Wanted
from firnmq.lake.reading.projection import by_id, by_name, has_ids, identified, projected
from firnmq.lake.reading.schema import RAW
from firnmq.lake.tables.files.rewrite import without_positions

if TYPE_CHECKING:
    from firnmq.tiering.stores import ObjectStore

_BATCH_ROWS: Final = 65_536
_READ_BYTES: Final = 4 * 1024 * 1024
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class HistoryFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    """Below the table's location."""
    size: int
    positions: tuple[int, ...] = ()
    """Rows that another engine has deleted, counted from 0."""


class HistorySplit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task's part of one shard's history: files, and which of their rows count."""

    location: str
    shard: int
    start_offset: int
    end_offset: int
    files: tuple[HistoryFile, ...]
    holes: tuple[int, ...] = ()
    dead_keys: tuple[tuple[bytes, int], ...] = ()
    columns: bytes | None = None
    """Where rows are not records as they are: the table's Arrow schema with ids, serialised."""


def read_history(
    split: HistorySplit,
    wanted: Wanted,
    columns: Sequence[str],
    options: Mapping[str, str],
) -> Generator[pa.RecordBatch, None, None]:
    """The split's wanted rows in the types of `schema.RAW`, narrowed to the columns."""
    schema = pa.schema([RAW.field(name) for name in columns])
    for rows in _read(split, wanted, options, lambda file: list(columns)):
        yield rows.select(list(columns)).cast(schema)


def read_columns(
    split: HistorySplit, wanted: Wanted, target: pa.Schema, options: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """The split's wanted rows with columns of the table, in the types of the target."""
    assert split.columns is not None
    known = identified(target, pa.ipc.read_schema(pa.BufferReader(split.columns)))
    wanted_ids = {by_id(field) for field in known}

    def needed(file: pa.Schema) -> list[str]:
        if not has_ids(file):
            return [name for name in target.names if name in file.names]
        return [field.name for field in file if by_id(field) in wanted_ids]

    for rows in _read(split, wanted, options, needed):
        # A file without ids was written by another program, which goes by names.
        yield projected(rows, known, by_id if has_ids(rows.schema) else by_name)


def _read(
    split: HistorySplit,
    wanted: Wanted,
    options: Mapping[str, str],
    needed: Callable[[pa.Schema], list[str]],
) -> Iterator[pa.RecordBatch]:
    """Rows that count, with the needed columns of each file, and those that say which count."""
    from firnmq.lake.tables.catalogs.catalog import warehouse_store

    judge = _Judge(split, wanted)
    store = warehouse_store(split.location, options)
    try:
        for file in split.files:
            with _parquet(store, split.location, file) as source:
                names = list(dict.fromkeys((*needed(source.schema_arrow), *judge.columns)))
                groups = judge.row_groups(source.metadata)
                for batch in _batches(source, groups, names, file.positions):
                    rows = judge.wanted(batch)
                    if rows.num_rows:
                        yield rows
    finally:
        store.close()


def _batches(
    source: pq.ParquetFile, groups: list[int], names: list[str], positions: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    if not positions:
        yield from source.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names)
        return
    metadata = source.metadata
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    for group in groups:
        first = sum(sizes[:group])
        for batch in source.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
            yield without_positions(batch, first, positions)
            first += batch.num_rows


class _Judge:
    """Says which rows of a file count."""

    def __init__(self, split: HistorySplit, wanted: Wanted) -> None:
        self._split = split
        self._wanted = wanted
        self._dead = dict(split.dead_keys)
        columns = ["offset"]
        if wanted.min_timestamp_ms is not None or wanted.end_timestamp_ms is not None:
            columns.append("timestamp")
        if wanted.keys is not None or self._dead:
            columns.append("key")
        if wanted.tags is not None:
            columns.append("tags")
        self.columns = tuple(columns)

    def row_groups(self, metadata: pq.FileMetaData) -> list[int]:
        """Those groups whose offsets and timestamps may be wanted."""
        kept = []
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            offsets = _statistics(group, "offset")
            times = _statistics(group, "timestamp")
            if offsets is not None:
                split = self._split
                if offsets[1] < split.start_offset or offsets[0] >= split.end_offset:
                    continue
            if times is not None and not self._may_have_times(*times):
                continue
            kept.append(index)
        return kept

    def _may_have_times(self, first: datetime, last: datetime) -> bool:
        low, end = self._wanted.min_timestamp_ms, self._wanted.end_timestamp_ms
        if low is not None and (last - _EPOCH) / _MILLISECOND < low:
            return False
        return end is None or (first - _EPOCH) / _MILLISECOND < end

    def wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        masks = list(self._masks(batch))
        if not masks:
            return batch
        mask = masks[0]
        for each in masks[1:]:
            mask = pc.and_(mask, each)
        return batch.filter(mask)

    def _masks(self, batch: pa.RecordBatch) -> Iterator[pa.Array]:
        split, wanted = self._split, self._wanted
        offsets = batch.column("offset")
        first, last = pc.min_max(offsets).as_py().values()
        if first < split.start_offset:
            yield pc.greater_equal(offsets, split.start_offset)
        if last >= split.end_offset:
            yield pc.less(offsets, split.end_offset)
        if split.holes:
            yield pc.invert(pc.is_in(offsets, value_set=pa.array(split.holes, pa.int64())))
        if "timestamp" in self.columns:
            micros = batch.column("timestamp").cast(pa.int64())
            if wanted.min_timestamp_ms is not None:
                yield pc.greater_equal(micros, _micros(wanted.min_timestamp_ms))
            if wanted.end_timestamp_ms is not None:
                yield pc.less(micros, _micros(wanted.end_timestamp_ms))
        if wanted.keys is not None:
            keys = pa.array(list(wanted.keys), pa.binary())
            yield pc.is_in(batch.column("key"), value_set=keys)
        if wanted.tags is not None:
            yield _has_any(batch.column("tags"), wanted.tags)
        if self._dead:
            yield self._alive(batch)

    def _alive(self, batch: pa.RecordBatch) -> pa.Array:
        keys = batch.column("key")
        dead = pa.array(list(self._dead), pa.binary())
        limits = pa.array(list(self._dead.values()), pa.int64())
        below = limits.take(pc.index_in(keys, value_set=dead))
        return pc.fill_null(pc.greater_equal(batch.column("offset"), below), True)


_MILLISECOND: Final = timedelta(milliseconds=1)


def _micros(time_ms: int) -> int:
    """As the table has it; limits beyond what it can hold are as good as its own."""
    return max(-(2**63), min(time_ms * 1000, 2**63 - 1))


def _statistics(group: pq.RowGroupMetaData, column: str) -> tuple[Any, Any] | None:
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema == column:
            found = chunk.statistics
            if found is None or not found.has_min_max:
                return None
            try:
                return found.min, found.max
            except (ValueError, OverflowError):
                return None  # Python has no date for a time that far away.
    return None


def _has_any(lists: pa.Array, terms: Sequence[str]) -> pa.Array:
    """Which of the lists have at least one of the terms."""
    hits = pc.is_in(lists.flatten(), value_set=pa.array(list(terms), pa.string()))
    owners = pc.filter(pc.list_parent_indices(lists), hits)
    rows = pa.array(range(len(lists)), pa.int64())
    return pc.is_in(rows, value_set=pc.unique(owners).cast(pa.int64()))


def _parquet(store: ObjectStore, location: str, file: HistoryFile) -> pq.ParquetFile:
    if location.startswith("file://"):
        path = Path(location.removeprefix("file://")) / file.path
        return pq.ParquetFile(path, memory_map=True)
    source = pa.PythonFile(_StoreFile(store, file), mode="r")
    return pq.ParquetFile(source, pre_buffer=True)


class _StoreFile(io.RawIOBase):
    """An object as a file to read from."""

    def __init__(self, store: ObjectStore, file: HistoryFile) -> None:
        super().__init__()
        self._store = store
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._file.size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = self._file.size - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        parts = []
        while wanted > 0:
            part = bytes(
                self._store.get_range(self._file.path, self._position, min(wanted, _READ_BYTES))
            )
            parts.append(part)
            self._position += len(part)
            wanted -= len(part)
        return b"".join(parts)
