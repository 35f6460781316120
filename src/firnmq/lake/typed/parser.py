"""A parser of values, made of a schema's document: values in, columns and misfits out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa

from firnmq.errors import InvalidArgument
from firnmq.lake.typed.avro import compile_avro
from firnmq.lake.typed.columns import Getter, Record, build_columns
from firnmq.lake.typed.failures import DoesNotFit
from firnmq.lake.typed.jsonschema import compile_json_schema


class SchemaKind(Enum):
    """What a schema's document is, and how values are written."""

    JSON = "json"
    """A JSON Schema; values are JSON."""
    AVRO = "avro"
    """An Avro schema; values are Avro's binary encoding, nothing before it."""
    AVRO_CONFLUENT = "avro-confluent"
    """The same after a zero byte and a schema's number in four bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What became of an array of values."""

    columns: pa.RecordBatch
    """One row per value that fits, in order; nulls for a value that was null."""
    fits: pa.BooleanArray
    """One per value."""
    reasons: list[str]
    """Why not, one per value that does not fit, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiled:
    record: Record
    decode: Callable[[bytes], Any]
    getter: Getter
    misfits: tuple[type[Exception], ...]
    """What `decode` raises for a value that does not fit."""


class Parser:
    """Parses values by one schema. It can be pickled: it travels as its document."""

    def __init__(
        self, document: str, kind: SchemaKind, writers: Mapping[int, str] | None = None
    ) -> None:
        self.document = document
        self.kind = kind
        self.writers = dict(writers or {})
        self._compiled = _compile(document, kind, self.writers)
        self._schema = pa.schema(self._compiled.record.arrow_fields())

    @classmethod
    def from_document(
        cls,
        document: str,
        kind: SchemaKind | str = SchemaKind.JSON,
        *,
        writers: Mapping[int, str] | None = None,
    ) -> Parser:
        """Raises SchemaRefused where the schema has no columns to be made of.

        `writers` are for avro-confluent: documents of the schemas that values were written with,
        by the number in front of the value. Without any, all values are taken to be written with
        `document` itself.
        """
        try:
            kind = SchemaKind(kind)
        except ValueError:
            known = ", ".join(each.value for each in SchemaKind)
            raise InvalidArgument("schema kind", f"{kind!r} is none of {known}") from None
        if writers and kind is not SchemaKind.AVRO_CONFLUENT:
            raise InvalidArgument("schemas by number", f"values of {kind.value} carry no number")
        return cls(document, kind, writers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Parser, (self.document, self.kind, self.writers)

    def arrow_fields(self) -> list[pa.Field]:
        """The columns that values are parsed into, all of them nullable."""
        return list(self._schema)

    def parse(self, values: pa.Array) -> Parsed:
        """Values (binary, null for a tombstone) into columns. No value makes it fail."""
        with _no_collection():
            return self._parse(values)

    def _parse(self, values: pa.Array) -> Parsed:
        compiled = self._compiled
        decode = compiled.decode
        rows: list[Any] = []
        places: list[int] = []
        reasons: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                rows.append(None if value is None else decode(value))
            except compiled.misfits as error:
                reasons[place] = _said(error)
            else:
                places.append(place)
        try:
            arrays = build_columns(compiled.record, rows, compiled.getter)
        except DoesNotFit:
            for row, reason in self._unbuildable(rows, 0).items():
                reasons[places[row]] = reason
            rows = [row for row, at in zip(rows, places, strict=True) if at not in reasons]
            arrays = build_columns(compiled.record, rows, compiled.getter)
        return Parsed(
            columns=pa.RecordBatch.from_arrays(arrays, schema=self._schema),
            fits=pa.array([place not in reasons for place in range(len(values))], pa.bool_()),
            reasons=[reasons[place] for place in sorted(reasons)],
        )

    def _unbuildable(self, rows: list[Any], first: int) -> dict[int, str]:
        """Which rows no column can hold. Halving finds a few among many without trying each."""
        try:
            build_columns(self._compiled.record, rows, self._compiled.getter)
        except DoesNotFit as error:
            if len(rows) == 1:
                return {first: str(error)}
            half = len(rows) // 2
            return self._unbuildable(rows[:half], first) | self._unbuildable(
                rows[half:], first + half
            )
        return {}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Rows make no cycles; looking for some among them takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _compile(document: str, kind: SchemaKind, writers: Mapping[int, str]) -> _Compiled:
    if kind is SchemaKind.JSON:
        schema = compile_json_schema(document)
        decoder = msgspec.json.Decoder(schema.struct)
        return _Compiled(
            record=schema.record,
            decode=decoder.decode,
            getter=schema.getter,
            misfits=(msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
        )
    avro = compile_avro(document, writers, has_prefix=kind is SchemaKind.AVRO_CONFLUENT)
    return _Compiled(
        record=avro.record, decode=avro.decode, getter=avro.getter, misfits=avro.misfits
    )


def _said(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start} of a text"
    return str(error) or type(error).__name__
