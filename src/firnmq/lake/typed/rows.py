"""Raw rows into rows of a typed table and rows of its dead-letter table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from firnmq.lake.reading.schema import RAW
from firnmq.lake.typed.deadletter import dead_letters
from firnmq.lake.typed.parser import Parser

_KEPT = [name for name in RAW.names if name != "value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRows:
    """What became of a batch of raw rows; every row is in one of the two, in order."""

    rows: pa.RecordBatch
    misfits: pa.RecordBatch


def typed_schema(parser: Parser) -> pa.Schema:
    """Columns of a typed table: those of a raw one without `value`, then the parsed ones."""
    return pa.schema([*(RAW.field(name) for name in _KEPT), *parser.arrow_fields()])


def raw_columns(names: Sequence[str]) -> list[str]:
    """Which columns of raw rows it takes to make these of a typed table."""
    return [name for name in RAW.names if name == "value" or name in names]


def fitting_rows(raw: pa.RecordBatch, parser: Parser) -> pa.RecordBatch:
    """Those of the raw rows whose values fit, `value` replaced by the columns it is parsed into."""
    parsed = parser.parse(raw.column("value"))
    fitting = raw if not parsed.reasons else raw.filter(parsed.fits)
    kept = [name for name in raw.schema.names if name != "value"]
    return pa.RecordBatch.from_arrays(
        [*(fitting.column(name) for name in kept), *parsed.columns.columns],
        schema=pa.schema([*(raw.schema.field(name) for name in kept), *parser.arrow_fields()]),
    )


def typed_rows(raw: pa.RecordBatch, parser: Parser) -> TypedRows:
    """`raw` has the columns of schema.RAW."""
    parsed = parser.parse(raw.column("value"))
    schema = typed_schema(parser)
    fitting = raw if not parsed.reasons else raw.filter(parsed.fits)
    rows = pa.RecordBatch.from_arrays(
        [*(fitting.column(name) for name in _KEPT), *parsed.columns.columns], schema=schema
    )
    missing = raw.slice(0, 0) if not parsed.reasons else raw.filter(pc.invert(parsed.fits))
    return TypedRows(rows=rows, misfits=dead_letters(missing, parsed.reasons))
