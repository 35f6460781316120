"""A topic's history as it is in its table: which files a reader needs, and for which rows.

The driver asks the catalog once, and gets the files and how far they go in the same breath: from
there on records are read from the log. Executors read the files by `files.rows`.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from firnmq.errors import FirnError
from firnmq.lake.plans.plan import OFFSET_END, Plan, ShardPlan, TablePlace, Wanted
from firnmq.lake.reading.schema import RAW
from firnmq.lake.tables.catalogs.sqlite_peek import SQLITE, Peeked, peek_mode, peek_table
from firnmq.lake.tables.files.names import FileElsewhere, below
from firnmq.lake.tables.files.rows import HistoryFile, HistorySplit, read_history
from firnmq.lake.typed.kept import KeptSchema

if TYPE_CHECKING:
    from firnmq.lake.tables.catalogs.catalog import OpenCatalog
    from firnmq.lake.tables.table import TopicTable

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


class TableNotTold(FirnError):
    """Columns are asked for, and the node cannot be asked where the topic's table is."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"topic {topic!r} cannot be read as columns now: the node's HTTP listener, which says "
            f"where its table is, cannot be asked ({reason}). Give its address by the option "
            "admin, or the table's place by catalog and warehouse; or read the records as they are "
            "with the option values=raw"
        )
        self.topic = topic


Shown = Literal["raw", "typed", "dead_letters"]
"""What rows are of a topic: records as they are, values as columns, or what fits no column."""
Values = Literal["auto", "raw", "typed", "dead_letters"]
"""What is asked for. `auto`: columns where the topic's table has them."""


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
    if needs_columns and place is None and plan.no_table_because is not None:
        raise TableNotTold(plan.topic, plan.no_table_because)
    if place is None or not _is_there(place, plan):
        if needs_columns:
            raise NotTyped(plan.topic, "it has no table that can be found from here")
        return NOTHING
    if importlib.util.find_spec("pyiceberg") is None:
        raise LakePackageMissing(place.name)
    from firnmq.lake.tables.catalogs.catalog import OpenCatalog
    from firnmq.lake.tables.table import find_table

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
    from firnmq.lake.tables.catalogs.catalog import DEAD_LETTERS
    from firnmq.lake.tables.table import find_table

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
    from firnmq.lake.plans.machine import machine_id

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
        tasks = list(table.iceberg.scan(row_filter=_row_filter(wanted)).plan_files())
        positions = _deleted_positions(table, tasks)
        for task in tasks:
            known = _known(task.file, location, positions.get(task.file.file_path, ()))
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


def _deleted_positions(table: TopicTable, tasks: list[Any]) -> dict[str, tuple[int, ...]]:
    """Path → rows that another engine has deleted without rewriting the file."""
    changed = [task for task in tasks if task.delete_files]
    if not changed:
        return {}
    from firnmq.lake.tables.files.pyiceberg_internals import deleted_positions

    return deleted_positions(table.iceberg, changed)


def _known(file: Any, location: str, positions: tuple[int, ...]) -> _Known:
    def bound(bounds: Mapping[int, bytes] | None, column: int, default: int) -> int:
        raw = (bounds or {}).get(column)
        return default if raw is None else int.from_bytes(raw, "little", signed=True)

    path = below(location, file.file_path)
    if path is None:
        raise FileElsewhere(location, file.file_path)
    return _Known(
        HistoryFile(path=path, size=file.file_size_in_bytes, positions=positions),
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
    from firnmq.lake.tables.catalogs.catalog import warehouse_store
    from firnmq.lake.tables.files.key_filter import may_hold_key

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
