"""The columns that Spark sees: all of a record's, or those that a narrower schema names."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from firnmq.errors import InvalidArgument
from firnmq.lake.schema import TIME

_HEADER: Final = StructType(
    [StructField("key", StringType(), nullable=False), StructField("value", BinaryType())]
)
RECORD: Final = StructType(
    [
        StructField("shard", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER, containsNull=False), nullable=False),
        StructField("tags", ArrayType(StringType(), containsNull=False), nullable=False),
    ]
)
"""The same columns as `lake.schema.RAW`."""
_SIMPLE: Final[dict[type[DataType], pa.DataType]] = {
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: TIME,
    BinaryType: pa.binary(),
    StringType: pa.string(),
}


def check_schema(schema: StructType) -> None:
    """InvalidArgument unless every column is one of a record's, with its type."""
    if not schema.fields:
        raise InvalidArgument("schema", "has no column")
    known = {field.name: field for field in RECORD}
    for field in schema:
        ours = known.get(field.name)
        if ours is None:
            raise InvalidArgument(
                "schema", f"a record has no column {field.name!r}; it has {', '.join(known)}"
            )
        if not _is_wider(field.dataType, ours.dataType):
            raise InvalidArgument(
                "schema",
                f"column {field.name!r} is {ours.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it after reading",
            )
        if ours.nullable and not field.nullable:
            raise InvalidArgument("schema", f"column {field.name!r} may be null")


def _is_wider(given: DataType, ours: DataType) -> bool:
    """Whether the type is ours, or ours with nulls allowed where we have none."""
    if isinstance(given, ArrayType) and isinstance(ours, ArrayType):
        return (given.containsNull or not ours.containsNull) and _is_wider(
            given.elementType, ours.elementType
        )
    if isinstance(given, StructType) and isinstance(ours, StructType):
        return given.names == ours.names and all(
            (each.nullable or not our.nullable) and _is_wider(each.dataType, our.dataType)
            for each, our in zip(given, ours, strict=True)
        )
    return given == ours


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects batches of this schema to be, to the last nullable flag.

    (Spark has a function for it, whose parameters change from release to release.)
    """
    return pa.schema([_arrow_field(field) for field in schema])


def _arrow_field(field: StructField) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType), nullable=field.nullable)


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(field) for field in kind])
    if isinstance(kind, ArrayType):
        element = _arrow_type(kind.elementType)
        return pa.list_(pa.field("element", element, nullable=kind.containsNull))
    return _SIMPLE[type(kind)]


def shaped(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch's columns as the schema has them; their memory is shared."""
    if batch.schema.equals(target):
        return batch
    arrays = []
    for field in target:
        column = batch.column(field.name)
        arrays.append(column if column.type.equals(field.type) else _relabelled(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _relabelled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same array with a type that differs in names and nullability inside."""
    return array.cast(kind)
