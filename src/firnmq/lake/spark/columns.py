"""The columns that Spark sees: a record's, or those of a typed table, or some of them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from firnmq.errors import InvalidArgument
from firnmq.lake.reading.projection import by_name, projected
from firnmq.lake.reading.schema import TIME

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
    BooleanType: pa.bool_(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimestampNTZType: pa.timestamp("us"),
}
_OF_ARROW: Final[dict[pa.DataType, DataType]] = {
    **{arrow: kind() for kind, arrow in _SIMPLE.items()},
    pa.large_string(): StringType(),
    pa.large_binary(): BinaryType(),
    # Spark has had a type for it since 4.1, which has to be switched on and few functions take.
    pa.time64("us"): StringType(),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """A table's columns as Spark has them."""
    return StructType([_spark_field(field, field.name) for field in schema])


def _spark_field(field: pa.Field, path: str) -> StructField:
    return StructField(field.name, _spark_type(field.type, path), nullable=field.nullable)


def _spark_type(kind: pa.DataType, path: str) -> DataType:
    if pa.types.is_struct(kind):
        return StructType([_spark_field(field, f"{path}.{field.name}") for field in kind])
    if pa.types.is_map(kind):
        return MapType(
            _spark_type(kind.key_type, path),
            _spark_type(kind.item_type, path),
            valueContainsNull=kind.item_field.nullable,
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field
        return ArrayType(_spark_type(element.type, path), containsNull=element.nullable)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    found = _OF_ARROW.get(kind)
    if found is None:
        raise InvalidArgument(
            "schema", f"the table's column {path!r} is {kind}, which no sync makes; name others"
        )
    return found


def check_schema(schema: StructType, row: StructType = RECORD) -> None:
    """InvalidArgument unless every column is one that rows have, with its type."""
    if not schema.fields:
        raise InvalidArgument("schema", "has no column")
    known = {field.name: field for field in row}
    for field in schema:
        ours = known.get(field.name)
        if ours is None:
            hint = "" if "value" in known else "; with the option values=raw there is value"
            raise InvalidArgument(
                "schema", f"a record has no column {field.name!r}; it has {', '.join(known)}{hint}"
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
    """Whether the type is ours, or ours with nulls allowed where we have none or fields left out.
    (A table may get more fields between the moment a data frame is made and that it is read.)"""
    if isinstance(given, ArrayType) and isinstance(ours, ArrayType):
        return (given.containsNull or not ours.containsNull) and _is_wider(
            given.elementType, ours.elementType
        )
    if isinstance(given, MapType) and isinstance(ours, MapType):
        return (given.valueContainsNull or not ours.valueContainsNull) and (
            given.keyType == ours.keyType and _is_wider(given.valueType, ours.valueType)
        )
    if isinstance(given, StructType) and isinstance(ours, StructType):
        known = {field.name: field for field in ours}
        return bool(given.names) and all(
            each.name in known
            and (each.nullable or not known[each.name].nullable)
            and _is_wider(each.dataType, known[each.name].dataType)
            for each in given
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
    if isinstance(kind, MapType):
        return pa.map_(
            pa.field("key", _arrow_type(kind.keyType), nullable=False),
            pa.field("value", _arrow_type(kind.valueType), nullable=kind.valueContainsNull),
        )
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _SIMPLE[type(kind)]


def shaped(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch's columns as the schema has them; their memory is shared."""
    return batch if batch.schema.equals(target) else projected(batch, target, by_name)
