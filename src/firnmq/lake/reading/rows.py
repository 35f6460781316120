"""Decoded columns as Arrow batches of the raw table's schema, and what the codec cannot filter."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from firnmq.errors import InvalidArgument
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.reading.schema import RAW, TIME
from firnmq.record import Columns
from firnmq.record.selection import ColumnName

TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
"""A later timestamp does not fit microseconds; it is shown as this one."""
_DECODED: Final[dict[str, ColumnName]] = {
    "key": "key",
    "value": "value",
    "headers": "headers",
    "tags": "tags",
}
_LISTS: Final = ("headers", "tags")
_SHARDS_MAX: Final = 65_536


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The raw schema, narrowed to some columns in the order they are named."""
    if columns is None:
        return RAW
    unknown = [name for name in columns if name not in RAW.names]
    if unknown:
        raise InvalidArgument(
            "columns", f"there is no column {unknown[0]!r}; there are {', '.join(RAW.names)}"
        )
    return pa.schema([RAW.field(name) for name in columns])


class RowMaker:
    """Makes Arrow batches of one shard's columns."""

    def __init__(self, shard: int, schema: pa.Schema, wanted: Wanted) -> None:
        self.schema = schema
        self._shard = shard
        self._shards = pa.nulls(0, pa.int32())
        self._keys = _several(wanted.keys, pa.binary())
        tags = wanted.tags
        encoded = None if tags is None else [tag.encode("utf-8", "replace") for tag in tags]
        self._tags = _several(encoded, pa.string())
        end_ms = wanted.end_timestamp_ms
        self._end_us: pa.Scalar | None = None
        if end_ms is not None:
            self._end_us = _numbers([min(end_ms, TIMESTAMP_MS_MAX) * 1000])[0]
        needed = set(schema.names)
        probed: set[str] = set()
        if self._keys is not None:
            probed.add("key")
        if self._tags is not None:
            probed.add("tags")
        self.probed = frozenset(_DECODED[name] for name in probed)
        """What has to be decoded to tell which records are wanted; {} where the codec knows."""
        self.decoded = frozenset(_DECODED[name] for name in (needed | probed) if name in _DECODED)

    def matches(self, columns: Columns) -> list[int]:
        """Offsets of the wanted records, by columns of which at least `probed` are decoded."""
        found = columns.to_arrow()
        mask = self._mask(found)
        offsets = found.column("offset")
        return list((offsets if mask is None else offsets.filter(mask)).to_pylist())

    def rows(self, columns: Columns) -> pa.RecordBatch:
        """The wanted records."""
        found = columns.to_arrow()
        made = pa.RecordBatch.from_arrays(
            [self._column(name, found) for name in self.schema.names], schema=self.schema
        )
        mask = self._mask(found)
        return made if mask is None else made.filter(mask)

    def _column(self, name: str, found: pa.RecordBatch) -> pa.Array:
        count = found.num_rows
        if name == "shard":
            return self._shard_column(count)
        if name == "timestamp":
            return _microseconds(found.column("timestamp"))
        made = found.column(name)
        if name in _LISTS:
            # The same lists; only the name of their elements is another.
            return pa.Array.from_buffers(
                RAW.field(name).type,
                count,
                [None, made.buffers()[1]],
                null_count=0,
                children=[made.values],
            )
        return made

    def _shard_column(self, count: int) -> pa.Array:
        if len(self._shards) < count:
            size = max(count, _SHARDS_MAX)
            numbers = array("i", [self._shard]) * size
            self._shards = pa.Array.from_buffers(pa.int32(), size, [None, pa.py_buffer(numbers)])
        return self._shards.slice(0, count)

    def _mask(self, found: pa.RecordBatch) -> pa.Array | None:
        """True for the rows that are wanted; None if all are."""
        masks: list[pa.Array] = []
        if self._keys is not None:
            masks.append(pc.is_in(found.column("key"), value_set=self._keys))
        if self._tags is not None:
            masks.append(_has_any(found.column("tags"), self._tags))
        if self._end_us is not None:
            times = _microseconds(found.column("timestamp")).cast(pa.int64())
            masks.append(pc.less(times, self._end_us))
        if not masks:
            return None
        mask = masks[0]
        for each in masks[1:]:
            mask = pc.and_(mask, each)
        return mask


def _several(terms: Sequence[bytes] | None, kind: pa.DataType) -> pa.Array | None:
    """Terms to look for one by one; a single one is the codec's to find."""
    if terms is None or len(terms) == 1:
        return None
    bounds = array("i", accumulate(map(len, terms), initial=0))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(terms))]
    return pa.Array.from_buffers(kind, len(terms), buffers)


def _numbers(numbers: Iterable[int]) -> pa.Array:
    """As an Arrow array. Not by `pa.array`: for that pyarrow loads pandas, which takes a second."""
    made = array("q", numbers)
    return pa.Array.from_buffers(pa.int64(), len(made), [None, pa.py_buffer(made)])


def _has_any(lists: pa.Array, terms: pa.Array) -> pa.Array:
    """Which of the lists have at least one of the terms."""
    hits = pc.is_in(lists.values, value_set=terms)
    owners = pc.list_parent_indices(lists)
    return pc.is_in(_numbers(range(len(lists))), value_set=pc.unique(pc.filter(owners, hits)))


def _microseconds(times: pa.Array) -> pa.Array:
    try:
        return times.cast(TIME)
    except pa.ArrowInvalid:
        numbers = pc.min_element_wise(times.cast(pa.int64()), TIMESTAMP_MS_MAX)
        return pc.multiply(numbers, 1000).cast(TIME)
