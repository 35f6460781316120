"""Columns to and from pyarrow. The only module of `firnmq.record` that imports it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa

from firnmq.errors import InvalidArgument
from firnmq.record.codec import BinaryViews
from firnmq.record.columns import BinaryColumn, Bytes, Columns, int32_view, int64_view

TIME: Final = pa.timestamp("ms", tz="UTC")
HEADER: Final = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIME, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER), nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("expire_at", TIME),
    ]
)
"""What a full set of columns looks like; a column that was not decoded is left out."""

_BINARY: Final = pa.binary()
_HEADERS: Final = SCHEMA.field("headers").type
_TAGS: Final = SCHEMA.field("tags").type
_NO_HEADERS: Final = pa.nulls(0, HEADER)
_NO_TAGS: Final = pa.nulls(0, pa.string())


def to_arrow(columns: Columns, *, views: bool = False) -> pa.RecordBatch:
    """The columns as a RecordBatch that shares their memory.

    Rewritten are only names that are not UTF-8 and, unless `views` are wanted, values that are.
    """
    arrays: dict[str, pa.Array] = {
        "offset": _fixed(pa.int64(), columns.length, columns.offset_buffer, None),
        "timestamp": _fixed(TIME, columns.length, columns.timestamp_buffer, None),
    }
    if columns.keys is not None:
        arrays["key"] = _binary(_BINARY, columns.keys)
    if columns.values is not None:
        arrays["value"] = _values(columns.values, views)
    if columns.header_names is not None and columns.header_values is not None:
        entries = _NO_HEADERS
        if len(columns.header_names):
            entries = pa.StructArray.from_arrays(
                [_text(columns.header_names), _binary(_BINARY, columns.header_values)],
                fields=list(HEADER),
            )
        arrays["headers"] = _list(_HEADERS, columns.length, columns.header_bounds_buffer, entries)
    if columns.tags is not None:
        tags = _text(columns.tags) if len(columns.tags) else _NO_TAGS
        arrays["tags"] = _list(_TAGS, columns.length, columns.tag_bounds_buffer, tags)
    if columns.expiry_buffer is None:
        arrays["expire_at"] = pa.nulls(columns.length, TIME)
    else:
        arrays["expire_at"] = _fixed(
            TIME, columns.length, columns.expiry_buffer, columns.expiry_validity
        )
    has_views = "value" in arrays and arrays["value"].type == pa.binary_view()
    schema = _schema(tuple(arrays), has_views)
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)


@cache
def _schema(names: tuple[str, ...], has_views: bool) -> pa.Schema:
    """The part of the schema with these columns, which are in its order."""
    schema = pa.schema([SCHEMA.field(name) for name in names])
    if has_views:
        schema = schema.set(names.index("value"), pa.field("value", pa.binary_view()))
    return schema


def table_of(parts: Sequence[Columns]) -> pa.Table:
    """Several sets of columns, decoded alike, as one table without copying."""
    return pa.Table.from_batches([to_arrow(part) for part in parts], None if parts else SCHEMA)


def from_arrow(table: pa.Table | pa.RecordBatch) -> Columns:
    """Columns from such a table. A column that is absent stays absent, extra ones are ignored.

    `next_offset` is one past the last row, `encoded_bytes` is 0 since nothing is encoded.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    for name in ("offset", "timestamp"):
        if name not in table.column_names:
            raise InvalidArgument("table", f"there is no column {name!r}")
    present = [field.name for field in SCHEMA if field.name in table.column_names]
    batch = _one_batch(table.select(present))
    arrays = {name: _filled(batch, name) for name in present}
    length = batch.num_rows
    offsets = _numbers(arrays["offset"])
    header_bounds, names, values = _header_columns(arrays.get("headers"))
    tag_bounds, tags = _tag_columns(arrays.get("tags"))
    expiry = arrays.get("expire_at")
    has_expiry = expiry is not None and expiry.null_count < length
    return Columns(
        length=length,
        offset_buffer=offsets,
        timestamp_buffer=_numbers(arrays["timestamp"]),
        keys=_binary_column(arrays.get("key")),
        values=_binary_column(arrays.get("value")),
        header_bounds_buffer=header_bounds,
        header_names=names,
        header_values=values,
        tag_bounds_buffer=tag_bounds,
        tags=tags,
        expiry_buffer=_numbers(expiry) if has_expiry else None,
        expiry_validity=_validity(expiry) if has_expiry else None,
        next_offset=offsets[length - 1] + 1 if length else 0,
        is_limited=False,
        encoded_bytes=0,
    )


def _fixed(kind: Any, length: int, data: Bytes, validity: Bytes | None) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, length, [bitmap, pa.py_buffer(data)])


def _binary(kind: Any, column: BinaryColumn) -> pa.Array:
    bitmap = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [bitmap, pa.py_buffer(column.bounds_buffer), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(column), buffers, column.null_count)


def _values(column: BinaryColumn | BinaryViews, views: bool) -> pa.Array:
    if isinstance(column, BinaryColumn):
        return _binary(_BINARY, column)
    if not views:
        return _binary(_BINARY, column.gathered())
    bitmap = None if column.validity is None else pa.py_buffer(column.validity)
    sources = map(pa.py_buffer, column.source_buffers())
    buffers = [bitmap, pa.py_buffer(column.views_buffer), *sources]
    return pa.Array.from_buffers(pa.binary_view(), len(column), buffers, column.null_count)


def _text(column: BinaryColumn) -> pa.Array:
    """As strings; what is not UTF-8 in an entry is replaced."""
    if bytes(column.data).isascii():
        return _binary(pa.string(), column)
    try:
        return _binary(_BINARY, column).cast(pa.string())
    except pa.ArrowInvalid:
        pass
    texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in column.entries()]
    return pa.array(texts, pa.string())


def _list(kind: Any, length: int, bounds: Bytes | None, entries: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        kind, length, [None, pa.py_buffer(bounds)], null_count=0, children=[entries]
    )


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows in one batch whose arrays begin at their buffers' beginning.

    Slices of arrays share their buffers from the middle on; a trip through Arrow's own
    stream format is what makes them begin at zero.
    """
    batches = table.combine_chunks().to_batches()
    if len(batches) == 0:
        batch = pa.RecordBatch.from_pylist([], schema=table.schema)
    else:
        (batch,) = batches
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()


def _filled(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column in the type of our schema, with empty lists in place of null ones."""
    array = batch.column(name)
    kind = SCHEMA.field(name).type
    try:
        if pa.types.is_list(kind) and array.null_count:
            array = pa.array([entry or [] for entry in array.to_pylist()], array.type)
        if not SCHEMA.field(name).nullable and array.null_count:
            raise InvalidArgument("table", f"column {name!r} has nulls")
        return array if array.type == kind else array.cast(kind)
    except pa.ArrowException as bad:
        raise InvalidArgument("table", f"column {name!r}: {bad}") from bad


def _validity(array: pa.Array) -> memoryview | None:
    bitmap = array.buffers()[0]
    return None if bitmap is None or array.null_count == 0 else memoryview(bitmap).cast("B")


def _numbers(array: pa.Array) -> memoryview:
    data = array.buffers()[1]
    return int64_view(b"" if data is None else data)[: len(array)]


def _bounds(array: pa.Array) -> memoryview:
    """Entry limits; an empty array may come without a buffer, but one zero is always meant."""
    data = array.buffers()[1]
    if len(array) == 0 or data is None:
        return int32_view(bytes(4))
    return int32_view(data)[: len(array) + 1]


def _binary_column(array: pa.Array | None) -> BinaryColumn | None:
    if array is None:
        return None
    data = array.buffers()[2]
    return BinaryColumn(
        length=len(array),
        bounds_buffer=_bounds(array),
        data=memoryview(b"" if data is None else data).cast("B"),
        validity=_validity(array),
        null_count=array.null_count,
    )


def _header_columns(
    array: pa.Array | None,
) -> tuple[memoryview | None, BinaryColumn | None, BinaryColumn | None]:
    if array is None:
        return None, None, None
    entries = array.values
    names = _binary_column(entries.field("key").cast(pa.binary()))
    return _bounds(array), names, _binary_column(entries.field("value"))


def _tag_columns(array: pa.Array | None) -> tuple[memoryview | None, BinaryColumn | None]:
    if array is None:
        return None, None
    return _bounds(array), _binary_column(array.values.cast(pa.binary()))
