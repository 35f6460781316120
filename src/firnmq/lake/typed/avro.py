"""Avro into columns and a decoder. Decoding is fastavro's; this module says what fits a table."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from firnmq.errors import FirnError
from firnmq.lake.reading.schema import TIME
from firnmq.lake.typed.columns import (
    LOCAL_TIME,
    Column,
    Field,
    Getter,
    Listing,
    Record,
    Scalar,
    column_names,
)
from firnmq.lake.typed.columns import Mapping as MappingColumn
from firnmq.lake.typed.failures import SchemaRefused

_PREFIX: Final = struct.Struct(
    ">B"  # magic, zero
    "I"  # number of the schema in its registry
)
assert _PREFIX.size == 5

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# Logical types that make another column of what they are written as. Those that are not here, or
# stand on another type, say nothing, as the specification has it.
_LOGICAL: Final = {
    ("int", "date"): Scalar(arrow=pa.date32()),
    ("int", "time-millis"): Scalar(arrow=pa.time64("us")),
    ("long", "time-micros"): Scalar(arrow=pa.time64("us")),
    ("long", "timestamp-millis"): Scalar(arrow=TIME),
    ("long", "timestamp-micros"): Scalar(arrow=TIME),
    ("long", "local-timestamp-millis"): Scalar(arrow=LOCAL_TIME),
    ("long", "local-timestamp-micros"): Scalar(arrow=LOCAL_TIME),
    ("string", "uuid"): Scalar(arrow=pa.string(), prepare=str),
}


class _NotAvro(FirnError):
    """A value is not what its schema says. It becomes the reason and never leaves the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSchema:
    record: Record
    decode: Callable[[bytes], Any]
    getter: Getter
    misfits: tuple[type[Exception], ...]


def compile_avro(document: str, writers: Mapping[int, str], *, has_prefix: bool) -> AvroSchema:
    """`writers`: schemas by number; empty where all values are written with `document`."""
    reader, expanded = _parsed(document, "#")
    column = _column(expanded, "#", is_top=True)
    if not isinstance(column, Record):
        raise SchemaRefused("#", "must be a record: its fields become the columns")
    schemas = {
        number: _parsed(text, f"schema number {number}")[0] for number, text in writers.items()
    }
    decoder = _Decoder(reader, schemas)
    return AvroSchema(
        record=column,
        decode=decoder.decode_prefixed if has_prefix else decoder.decode,
        getter=itemgetter,
        misfits=(_NotAvro,),
    )


class _Decoder:
    def __init__(self, reader: Any, writers: Mapping[int, Any]) -> None:
        from fastavro import schemaless_reader
        from fastavro.read import SchemaResolutionError

        self._read = schemaless_reader
        self._reader = reader
        self._writers = writers
        # fastavro has no error of its own for bytes that are not Avro: what comes up in the
        # middle of reading is what they made it stumble over.
        self._errors: tuple[type[Exception], ...] = (
            *(EOFError, IndexError, KeyError, ValueError, TypeError, ArithmeticError),
            *(struct.error, MemoryError, StopIteration, SchemaResolutionError),
        )

    def decode(self, value: bytes) -> Any:
        return self._decode(value, 0, self._reader)

    def decode_prefixed(self, value: bytes) -> Any:
        if len(value) < _PREFIX.size or value[0] != 0:
            raise _NotAvro("does not begin with a zero byte and the number of a schema")
        _, number = _PREFIX.unpack_from(value)
        writer = self._writers.get(number) if self._writers else self._reader
        if writer is None:
            raise _NotAvro(f"is written with schema number {number}, which was not given")
        return self._decode(value, _PREFIX.size, writer)

    def _decode(self, value: bytes, start: int, writer: Any) -> Any:
        source = io.BytesIO(value)
        source.seek(start)
        reader = None if writer is self._reader else self._reader
        try:
            decoded = self._read(source, writer, reader)
        except self._errors as error:
            name = type(error).__name__
            raise _NotAvro(f"cannot be read as Avro: {name} {error}".rstrip()) from None
        left = len(value) - source.tell()
        if left:
            raise _NotAvro(f"cannot be read as Avro: {left} bytes are left after the record")
        return decoded


def _parsed(document: str, where: str) -> tuple[Any, Any]:
    """The schema as fastavro reads by it, and with named types written out where they are used."""
    from fastavro.schema import SchemaParseException, UnknownType, expand_schema, parse_schema

    try:
        schema = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaRefused(where, f"is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise SchemaRefused(where, "must be a record: its fields become the columns")
    try:
        return parse_schema(schema), expand_schema(schema)
    except (SchemaParseException, UnknownType, TypeError, ValueError, KeyError) as error:
        raise SchemaRefused(where, f"is not an Avro schema: {error!r}") from None


def _column(schema: Any, where: str, *, is_top: bool = False) -> Column:
    if isinstance(schema, list):
        others = [choice for choice in schema if choice != "null"]
        if len(others) != 1:
            raise SchemaRefused(where, "a union can only be of null and one other type")
        return _column(others[0], where)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _column(kind, where, is_top=is_top)
    match kind:
        case "record":
            return _record(schema, where, is_top=is_top)
        case "array":
            return Listing(element=_column(schema["items"], f"{where}/items"))
        case "map":
            return MappingColumn(value=_column(schema["values"], f"{where}/values"))
        case "enum":
            return Scalar(arrow=pa.string())
        case "fixed" | "bytes" if schema.get("logicalType") == "decimal":
            return _decimal(schema, where)
        case "fixed":
            if schema["size"] < 1:
                raise SchemaRefused(where, "a fixed of no bytes holds nothing")
            return Scalar(arrow=pa.binary())
    if kind == "null":
        raise SchemaRefused(where, "only null is no column; use a union of null and a type")
    if kind not in _PRIMITIVES:
        raise SchemaRefused(where, f"{kind} refers to itself; columns cannot")
    logical = _LOGICAL.get((kind, schema.get("logicalType", "")))
    return logical or Scalar(arrow=_PRIMITIVES[kind])


def _record(schema: Any, where: str, *, is_top: bool) -> Record:
    # What takes no bytes at all could be repeated without end by a few bytes of an array.
    if not schema["fields"]:
        raise SchemaRefused(where, "a record without fields has no columns")
    names = [field["name"] for field in schema["fields"]]
    columns = column_names(names, where, is_top=is_top)
    return Record(
        fields=tuple(
            Field(
                name=column,
                source=field["name"],
                column=_column(field["type"], f"{where}/{field['name']}"),
            )
            for column, field in zip(columns, schema["fields"], strict=True)
        )
    )


def _decimal(schema: Any, where: str) -> Scalar:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise SchemaRefused(where, f"decimal({precision}, {scale}) is beyond decimal(38, 38)")
    return Scalar(arrow=pa.decimal128(precision, scale))
