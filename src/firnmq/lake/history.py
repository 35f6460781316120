"""A topic's history as it is in its table: which files a reader needs, and reading them.

The driver asks the catalog once, and gets the files and how far they go in the same breath: from
there on records are read from the log. Executors read Parquet with pyarrow and need no catalog.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firnmq.errors import FirnError
from firnmq.lake.names import FileElsewhere, below
from firnmq.lake.peek import SQLITE, Peeked, peek_mode, peek_table
from firnmq.lake.plan import OFFSET_END, Plan, ShardPlan, TablePlace, Wanted
from firnmq.lake.projection import by_id, by_name, has_ids, identified, projected
from firnmq.lake.schema import RAW
from firnmq.lake.typed.kept import KeptSchema

if TYPE_CHECKING:
    from firnmq.lake.catalog import OpenCatalog
    from firnmq.lake.table import TopicTable
    from firnmq.tiering.stores import ObjectStore

_BATCH_ROWS: Final = 65_536
_READ_BYTES: Final = 4 * 1024 * 1024
_SHARD_ID, _OFFSET_ID = 1, 2
"""Field ids of the table's first columns."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, beyond which Python has no dates and no file is worth excluding."""
_TIME_MS_MIN: Final = -_TIME_MS_MAX // 10
"""The same, long before any clock."""
_BLOOM_FILES_MAX: Final = 2_000
"""Looking into a file's filter is a request; of more files than this, tasks do it themselves."""


class LakePackageMissing(FirnError):
    """A topic has a table, and the package that reads catalogs is not installed."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table {table} holds a part of the topic, and pyiceberg is not installed to read it: "
            "pip install 'firnmq[lake]', or set the option table to never"
        )
        self.table = table


class NotTyped(FirnError):
    """Columns are asked for of a topic that has no typed table."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"topic {topic!r} cannot be read as columns: {reason}. Convert it with firn lake sync "
            "--schema FILE, or read its records as they are with the option values=raw"
        )
        self.topic = topic


Shown = Literal["raw", "typed", "dead_letters"]
"""What rows are of a topic: records as they are, values as columns, or what fits no column."""
Values = Literal["auto", "raw", "typed", "dead_letters"]
"""What is asked for. `auto`: columns where the topic's table has them."""


class HistoryFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Below the table's location."""
    size: int


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


class History(NamedTuple):
    ends: dict[int, int]
    """Shard → where the log takes over."""
    splits: list[HistorySplit]
    shown: Shown = "raw"
    columns: pa.Schema = RAW
    """Of the rows, with the types of the table."""
    table: str = ""
    schema: KeptSchema | None = None
    """What values behind the ends are to be parsed by, where the table says so."""
    hidden: Mapping[int, int] = MappingProxyType({})
    """Shard → an offset before the log's start that only a table of columns has, where records are
    asked for as they are."""


NOTHING: Final = History({}, [])


def plan_history(
    plan: Plan,
    wanted: Wanted,
    options: Mapping[str, str],
    target_bytes: int,
    values: Values = "auto",
) -> History:
    """What of the wanted records is in the topic's table. Nothing if there is no such table, or if
    it does not have the records as they are and that is what is asked for."""
    place = plan.table
    needs_columns = values in ("typed", "dead_letters")
    if place is None or not _is_there(place, plan):
        if needs_columns:
            raise NotTyped(plan.topic, "it has no table that can be found from here")
        return NOTHING
    if importlib.util.find_spec("pyiceberg") is None:
        raise LakePackageMissing(place.name)
    from firnmq.lake.catalog import OpenCatalog
    from firnmq.lake.table import find_table

    with OpenCatalog(place, options) as catalog:
        table = find_table(catalog, plan.topic, plan.topic_id or None)
        if needs_columns and (table is None or table.mode != "typed"):
            reason = "it has no table" if table is None else f"its table is {table.mode}"
            raise NotTyped(plan.topic, reason)
        if table is None:
            return NOTHING
        scan = _Scan(plan, wanted, options, target_bytes)
        if table.mode == "typed" and values != "raw":
            return _of_columns(
                catalog, table, scan, "dead_letters" if values == "dead_letters" else "typed"
            )
        if table.mode == "raw":
            ends = table.ends()
            return History(ends, scan.splits(table, ends), table=table.name)
        dead = _dead_letters(catalog, plan)
        hidden = {} if dead is None else _hidden(dead, scan)
        return History({}, [], table=table.name, hidden=hidden | _hidden(table, scan))


def _dead_letters(catalog: OpenCatalog, plan: Plan) -> TopicTable | None:
    from firnmq.lake.catalog import DEAD_LETTERS
    from firnmq.lake.table import find_table

    return find_table(catalog, plan.topic, plan.topic_id or None, namespace=DEAD_LETTERS)


def _of_columns(catalog: OpenCatalog, table: TopicTable, scan: _Scan, shown: Shown) -> History:
    schema = KeptSchema.found(table.properties)
    if shown == "dead_letters":
        dead = _dead_letters(catalog, scan.plan)
        if dead is None:
            raise NotTyped(scan.plan.topic, "it has no table of dead letters yet")
        table = dead
    ends, columns = table.ends(), table.columns()
    known = columns.serialize().to_pybytes()
    splits = [msgspec.structs.replace(each, columns=known) for each in scan.splits(table, ends)]
    return History(ends, splits, shown, columns, table.name, schema)


def _hidden(table: TopicTable, scan: _Scan) -> dict[int, int]:
    """Where the table has something of what is wanted that the log has not any more. Files are
    looked into, up to the first such row: they may well reach into what the log has."""
    ends = table.ends()
    starts = {
        each.shard: min(each.start_offset, ends.get(each.shard, 0)) for each in scan.plan.shards
    }
    found: dict[int, int] = {}
    for split in scan.splits(table, starts):
        if split.shard in found:
            continue
        with closing(read_history(split, scan.wanted, ["offset"], scan.options)) as batches:
            for batch in batches:
                found[split.shard] = batch.column("offset")[0].as_py()
                break
    return found


def _is_there(place: TablePlace, plan: Plan) -> bool:
    """Whether the catalog may have something: one in a file is not made just by looking."""
    if not place.catalog.startswith(SQLITE):
        return True
    if Path(place.catalog.removeprefix(SQLITE)).exists():
        return peek_table(place, plan.topic) is not Peeked.NO_TABLE
    from firnmq.lake.machine import machine_id

    if plan.machine is not None and plan.machine != machine_id():
        warnings.warn(
            f"the catalog {place.catalog} is a file on another machine; what of {plan.topic!r} is "
            "only in its table is not read. Use a REST catalog to share tables",
            stacklevel=2,
        )
    return False


def is_certainly_raw(plan: Plan, options: Mapping[str, str]) -> bool:
    """Whether a look into the catalog is enough to know that records are shown as they are."""
    place = plan.table
    if place is None or not _is_there(place, plan):
        return True
    return peek_mode(place, plan.topic, options) == "raw"


class _Known(NamedTuple):
    """What the catalog says of a file."""

    file: HistoryFile
    shard: int
    first_offset: int
    last_offset: int


class _Scan(NamedTuple):
    """What is looked for in a table, and how much of it is one task's."""

    plan: Plan
    wanted: Wanted
    options: Mapping[str, str]
    target_bytes: int

    def splits(self, table: TopicTable, ends: Mapping[int, int]) -> list[HistorySplit]:
        """Of the wanted rows below these ends."""
        wanted = self.wanted
        location = table.location
        shards = {each.shard: each for each in self.plan.shards}
        found: dict[int, list[_Known]] = {}
        for task in table.iceberg.scan(row_filter=_row_filter(wanted)).plan_files():
            known = _known(task.file, location)
            start, end = _bounds(known.shard, ends, wanted)
            if start < end and known.last_offset >= start and known.first_offset < end:
                found.setdefault(known.shard, []).append(known)
        kept = _with_keys(found, location, wanted, self.options)
        splits = []
        for shard in sorted(kept):
            start, end = _bounds(shard, ends, wanted)
            for files in _grouped(kept[shard], self.target_bytes):
                part = shards.get(shard)
                splits.append(
                    HistorySplit(
                        location=location,
                        shard=shard,
                        start_offset=start,
                        end_offset=end,
                        files=tuple(each.file for each in files),
                        holes=_holes(part, files),
                        dead_keys=() if part is None else part.dead_keys,
                    )
                )
        return splits


def _bounds(shard: int, ends: Mapping[int, int], wanted: Wanted) -> tuple[int, int]:
    """Offsets that are wanted and that the table has; equal if there are none."""
    if wanted.shards is not None and shard not in wanted.shards:
        return 0, 0
    start = wanted.start_offsets.get(shard, 0)
    end = min(ends.get(shard, 0), wanted.end_offsets.get(shard, OFFSET_END))
    return start, max(start, end)


def _known(file: Any, location: str) -> _Known:
    def bound(bounds: Mapping[int, bytes] | None, column: int, default: int) -> int:
        raw = (bounds or {}).get(column)
        return default if raw is None else int.from_bytes(raw, "little", signed=True)

    path = below(location, file.file_path)
    if path is None:
        raise FileElsewhere(location, file.file_path)
    return _Known(
        HistoryFile(path=path, size=file.file_size_in_bytes),
        bound(file.lower_bounds, _SHARD_ID, 0),
        bound(file.lower_bounds, _OFFSET_ID, 0),
        bound(file.upper_bounds, _OFFSET_ID, OFFSET_END),
    )


def _row_filter(wanted: Wanted) -> Any:
    """What the catalog can judge files by."""
    # Its classes take fewer arguments than their types say.
    of: Any = importlib.import_module("pyiceberg.expressions")
    found = of.AlwaysTrue()
    for column, terms in (("shard", wanted.shards), ("key", wanted.keys)):
        if terms is not None:
            found = of.And(found, of.In(column, terms) if terms else of.AlwaysFalse())
    low, end = wanted.min_timestamp_ms, wanted.end_timestamp_ms
    if low is not None and low >= _TIME_MS_MIN:
        found = of.And(found, of.GreaterThanOrEqual("timestamp", _moment(low)))
    if end is not None and end <= _TIME_MS_MAX:
        found = of.And(found, of.LessThan("timestamp", _moment(end)))
    return found


def _moment(time_ms: int) -> str:
    limited = max(_TIME_MS_MIN, min(time_ms, _TIME_MS_MAX))
    return (_EPOCH + timedelta(milliseconds=limited)).isoformat()


def _with_keys(
    found: dict[int, list[_Known]],
    location: str,
    wanted: Wanted,
    options: Mapping[str, str],
) -> dict[int, list[_Known]]:
    """Those files that may hold a wanted key, as their Bloom filters say."""
    count = sum(map(len, found.values()))
    if wanted.keys is None or not 0 < count <= _BLOOM_FILES_MAX:
        return found
    from firnmq.lake.catalog import warehouse_store
    from firnmq.lake.keyfilter import may_hold_key

    store = warehouse_store(location, options)
    try:
        return {
            shard: [
                each
                for each in files
                if may_hold_key(store, each.file.path, each.file.size, wanted.keys)
            ]
            for shard, files in found.items()
        }
    finally:
        store.close()


def _grouped(files: Sequence[_Known], target_bytes: int) -> Iterator[list[_Known]]:
    group: list[_Known] = []
    size = 0
    for each in sorted(files, key=lambda known: known.first_offset):
        if group and size + each.file.size > target_bytes:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.file.size
    if group:
        yield group


def _holes(shard: ShardPlan | None, files: Sequence[_Known]) -> tuple[int, ...]:
    if shard is None or not shard.holes:
        return ()
    first = min(each.first_offset for each in files)
    last = max(each.last_offset for each in files)
    return tuple(hole for hole in shard.holes if first <= hole <= last)


# Executors ----------------------------------------------------------------------------------------


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
        # A file without ids was written by somebody else, for whom names are what counts.
        yield projected(rows, known, by_id if has_ids(rows.schema) else by_name)


def _read(
    split: HistorySplit,
    wanted: Wanted,
    options: Mapping[str, str],
    needed: Callable[[pa.Schema], list[str]],
) -> Iterator[pa.RecordBatch]:
    """Rows that count, with the needed columns of each file, and those that say which count."""
    from firnmq.lake.catalog import warehouse_store

    judge = _Judge(split, wanted)
    store = warehouse_store(split.location, options)
    try:
        for file in split.files:
            with _parquet(store, split.location, file) as source:
                names = list(dict.fromkeys((*needed(source.schema_arrow), *judge.columns)))
                groups = judge.row_groups(source.metadata)
                for batch in source.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names):
                    rows = judge.wanted(batch)
                    if rows.num_rows:
                        yield rows
    finally:
        store.close()


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
