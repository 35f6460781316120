"""What a schema is made into: a tree of columns, and Arrow arrays from decoded values.

All columns are nullable, nested ones too, whatever the schema requires: a record without a value
(a tombstone) is a row of nulls, and rows from before a column was added have null there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from firnmq.lake.reading.schema import RAW, TIME
from firnmq.lake.typed.failures import DoesNotFit, SchemaRefused

Getter: TypeAlias = Callable[[str], Callable[[Any], Any]]
"""Makes of a field's source name a function that takes it out of a decoded object."""

RESERVED_NAMES: Final = frozenset(name.lower() for name in RAW.names) | {"reason"}
LOCAL_TIME: Final = pa.timestamp("us")

_OUTSIDE_NAMES: Final = re.compile(r"\W")
# What Python, and so a good part of a table's readers, can show: the years 1 to 9999.
_MICROSECONDS_MIN: Final = -62_135_596_800_000_000
_MICROSECONDS_MAX: Final = 253_402_300_799_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    arrow: pa.DataType
    prepare: Callable[[Any], Any] | None = None
    """Makes of a decoded value one that Arrow takes."""
    factor: int | None = None
    """For times that come as integers: microseconds of one unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    element: Column

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.element.arrow))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    value: Column

    @property
    def arrow(self) -> pa.DataType:
        return pa.map_(pa.string(), pa.field("value", self.value.arrow))


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    """Of the column."""
    source: str
    """Name of the attribute or key that a decoded object has it under."""
    column: Column
    may_be_unset: bool = False
    """The decoded object has msgspec.UNSET where the field was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    fields: tuple[Field, ...]

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct(self.arrow_fields())

    def arrow_fields(self) -> list[pa.Field]:
        return [pa.field(field.name, field.column.arrow) for field in self.fields]


Column: TypeAlias = Scalar | Listing | Mapping | Record


def column_names(names: Sequence[str], where: str, *, is_top: bool) -> list[str]:
    """Names of columns for names of fields. What SQL cannot say unquoted becomes an underscore;
    a name that the table's own columns have gets `value_` in front."""
    taken: dict[str, str] = {}
    columns = []
    for name in names:
        column = _OUTSIDE_NAMES.sub("_", name)
        if is_top and column.lower() in RESERVED_NAMES:
            column = f"value_{column}"
        if not column:
            raise SchemaRefused(where, "a field has an empty name")
        # Spark and most other engines do not tell names apart by case.
        other = taken.setdefault(column.lower(), name)
        if other != name:
            raise SchemaRefused(
                where, f"fields {other!r} and {name!r} would be one column, {column}; rename one"
            )
        columns.append(column)
    return columns


def build_columns(
    record: Record, rows: Sequence[Any], getter: Getter, where: str = "$"
) -> list[pa.Array]:
    """One array per field. A row may be None. Raises DoesNotFit with the column's name."""
    present = rows if None not in rows else [row for row in rows if row is not None]
    arrays = []
    for field in record.fields:
        values = list(map(getter(field.source), present))
        if field.may_be_unset:
            values = [None if value is msgspec.UNSET else value for value in values]
        if len(present) < len(rows):
            rest = iter(values)
            values = [None if row is None else next(rest) for row in rows]
        arrays.append(_build(field.column, values, getter, f"{where}.{field.name}"))
    return arrays


def _build(column: Column, values: list[Any], getter: Getter, where: str) -> pa.Array:
    match column:
        case Scalar():
            return _build_scalar(column, values, where)
        case Record():
            arrays = build_columns(column, values, getter, where)
            mask = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(arrays, fields=column.arrow_fields(), mask=mask)
        case Listing():
            items = _build(
                column.element,
                list(chain.from_iterable(value for value in values if value is not None)),
                getter,
                f"{where}[...]",
            )
            return pa.ListArray.from_arrays(_offsets(values), items, type=column.arrow)
        case Mapping():
            present = [value for value in values if value is not None]
            keys = pa.array(chain.from_iterable(present), pa.string())
            inner = list(chain.from_iterable(value.values() for value in present))
            items = _build(column.value, inner, getter, f"{where}[...]")
            return pa.MapArray.from_arrays(_offsets(values), keys, items, column.arrow)


def _offsets(values: Iterable[Any]) -> pa.Array:
    """Where each list begins and the last one ends; null where there is no list."""
    values = list(values)
    starts = list(accumulate((len(v) if v is not None else 0 for v in values), initial=0))
    offsets = [
        None if value is None else start for value, start in zip(values, starts, strict=False)
    ]
    return pa.array([*offsets, starts[-1]], pa.int32())


def _build_scalar(column: Scalar, values: list[Any], where: str) -> pa.Array:
    try:
        if column.prepare is not None:
            prepare = column.prepare
            values = [None if value is None else prepare(value) for value in values]
        if column.factor is not None:
            array = pc.multiply_checked(pa.array(values, pa.int64()), column.factor)
            array = array.cast(column.arrow)
        else:
            array = pa.array(values, column.arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        if pa.types.is_decimal(column.arrow):
            digits = f"decimal({column.arrow.precision}, {column.arrow.scale})"
            raise DoesNotFit(where, f"does not fit {digits} without rounding") from None
        raise DoesNotFit(where, str(error)) from None
    if column.arrow in (TIME, LOCAL_TIME) and len(array) > array.null_count:
        bounds = pc.min_max(array.cast(pa.int64())).as_py()
        if bounds["min"] < _MICROSECONDS_MIN or bounds["max"] > _MICROSECONDS_MAX:
            raise DoesNotFit(where, "time outside of the years 1 to 9999")
    return array
