"""Rows with the columns that a reader wants, made of rows with those that a file or a parser has.

Columns are found by their ids in files, as Iceberg has it, and by their names in what was parsed.
One that is not there is null, at any depth: a file may be older than the column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa

_ID: Final = b"PARQUET:field_id"

Identity: TypeAlias = Callable[[pa.Field], bytes]


def by_id(field: pa.Field) -> bytes:
    return bytes((field.metadata or {}).get(_ID, b""))


def by_name(field: pa.Field) -> bytes:
    return bytes(field.name.encode())


def has_ids(schema: pa.Schema) -> bool:
    return all(by_id(field) for field in schema)


def identified(wanted: pa.Schema, known: pa.Schema) -> pa.Schema:
    """The wanted columns with the ids that those of the same names have in a table."""
    return pa.schema([_identified(field, known.field(field.name)) for field in wanted])


def _identified(field: pa.Field, known: pa.Field) -> pa.Field:
    kind, other = field.type, known.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_identified(each, other.field(each.name)) for each in kind])
    elif pa.types.is_map(kind):
        item = _identified(kind.item_field, other.item_field)
        kind = pa.map_(kind.key_field, item)
    elif pa.types.is_list(kind):
        kind = pa.list_(_identified(kind.value_field, other.value_field))
    return field.with_type(kind).with_metadata({_ID: by_id(known)})


def projected(batch: pa.RecordBatch, target: pa.Schema, identity: Identity) -> pa.RecordBatch:
    """The batch's rows with the target's columns and types."""
    found = {identity(field): number for number, field in enumerate(batch.schema)}
    arrays = []
    for field in target:
        number = found.get(identity(field))
        if number is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            arrays.append(_projected(batch.column(number), field.type, identity))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _projected(array: pa.Array, kind: pa.DataType, identity: Identity) -> pa.Array:
    if array.type.equals(kind, check_metadata=True):
        return array
    if pa.types.is_struct(kind):
        return _structs(array, kind, identity)
    if pa.types.is_map(kind):
        entries = array.values
        keys = _projected(entries.field(0), kind.key_type, identity)
        items = _projected(entries.field(1), kind.item_type, identity)
        fields = [kind.key_field, kind.item_field]
        return _lists(array, kind, pa.StructArray.from_arrays([keys, items], fields=fields))
    if pa.types.is_list(kind):
        return _lists(array, kind, _projected(array.values, kind.value_type, identity))
    return array if array.type.equals(kind) else array.cast(kind)


def _structs(array: pa.StructArray, kind: pa.StructType, identity: Identity) -> pa.Array:
    found = {identity(field): number for number, field in enumerate(array.type)}
    children = []
    for field in kind:
        number = found.get(identity(field))
        if number is None:
            children.append(pa.nulls(len(array), field.type))
        else:
            children.append(_projected(array.field(number), field.type, identity))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _lists(array: pa.ListArray, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """The same lists of other values, of which there are as many."""
    return pa.Array.from_buffers(
        kind,
        len(array),
        array.buffers()[:2],
        null_count=array.null_count,
        offset=array.offset,
        children=[values],
    )
