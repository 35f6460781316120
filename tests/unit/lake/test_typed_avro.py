"""Avro: which columns a schema makes, values with and without a schema's number, and misfits."""

import io
import json
import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from firnmq.lake.reading.schema import TIME
from firnmq.lake.typed import Parser, SchemaRefused

NAMED = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}


def record(*fields: object) -> dict[str, object]:
    return {"type": "record", "name": "Event", "namespace": "shop.v1", "fields": list(fields)}


def encoded(
    schema: dict[str, object], value: dict[str, object], number: int | None = None
) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    prefix = b"" if number is None else b"\x00" + number.to_bytes(4, "big")
    return prefix + target.getvalue()


def make_parser(schema: object, kind: str = "avro", **writers: object) -> Parser:
    numbered = {int(number[1:]): json.dumps(writer) for number, writer in writers.items()}
    return Parser.from_document(json.dumps(schema), kind, writers=numbered)


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "shown"),
    [
        ("boolean", pa.bool_(), True, True),
        ("int", pa.int32(), -(2**31), -(2**31)),
        ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
        ("float", pa.float32(), 0.5, 0.5),
        ("double", pa.float64(), 0.1, 0.1),
        ("bytes", pa.binary(), b"\xff\x00", b"\xff\x00"),
        ("string", pa.string(), "grün", "grün"),
        ({"type": "string"}, pa.string(), "x", "x"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"ab", b"ab"),
        (NAMED, pa.string(), "BLUE", "BLUE"),
        (["null", "string"], pa.string(), None, None),
        (["long", "null"], pa.int64(), 3, 3),
        (
            {"type": "array", "items": ["null", "int"]},
            pa.list_(pa.field("element", pa.int32())),
            [1, None],
            [1, None],
        ),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), {"k": 1}, [("k", 1)]),
        ({"type": "int", "logicalType": "date"}, pa.date32(), date(2024, 2, 29), date(2024, 2, 29)),
        (
            {"type": "int", "logicalType": "time-millis"},
            pa.time64("us"),
            time(1, 2, 3, 4_000),
            time(1, 2, 3, 4_000),
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            TIME,
            datetime(2024, 2, 29, 1, 2, 3, 4_000, UTC),
            datetime(2024, 2, 29, 1, 2, 3, 4_000, UTC),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            pa.timestamp("us"),
            datetime(1960, 1, 1, 1, 1),
            datetime(1960, 1, 1, 1, 1),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
            pa.decimal128(12, 3),
            Decimal("-1.250"),
            Decimal("-1.250"),
        ),
        (
            {"type": "fixed", "name": "D", "size": 6, "logicalType": "decimal", "precision": 9},
            pa.decimal128(9, 0),
            Decimal(12),
            Decimal(12),
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            pa.string(),
            UUID("123e4567-e89b-12d3-a456-426614174000"),
            "123e4567-e89b-12d3-a456-426614174000",
        ),
        ({"type": "long", "logicalType": "of-my-own"}, pa.int64(), 3, 3),
    ],
    ids=str,
)
def test_a_type_is_a_column(kind: object, arrow: pa.DataType, value: object, shown: object) -> None:
    schema = record({"name": "a", "type": kind})
    parser = make_parser(schema)
    assert parser.arrow_fields() == [pa.field("a", arrow)]
    parsed = parser.parse(pa.array([encoded(schema, {"a": value}), None], pa.binary()))
    assert parsed.reasons == []
    assert parsed.columns.column("a").to_pylist() == [shown, None]


def test_records_nest_and_names_are_used_again() -> None:
    inner = {
        "type": "record",
        "name": "Point",
        "fields": [{"name": "x", "type": "int"}, {"name": "c", "type": ["null", NAMED]}],
    }
    schema = record(
        {"name": "one", "type": inner},
        {"name": "more", "type": {"type": "array", "items": "Point"}},
        {"name": "by_name", "type": {"type": "map", "values": ["null", "shop.v1.Point"]}},
        {"name": "colour", "type": "Colour"},
    )
    value = {
        "one": {"x": 1, "c": None},
        "more": [{"x": 2, "c": "RED"}, {"x": 3, "c": "BLUE"}],
        "by_name": {"p": {"x": 4, "c": None}, "q": None},
        "colour": "RED",
    }
    parsed = make_parser(schema).parse(pa.array([encoded(schema, value)] * 2, pa.binary()))
    shown = {**value, "by_name": [("p", {"x": 4, "c": None}), ("q", None)]}
    assert parsed.columns.to_pylist() == [shown, shown]


def test_the_number_in_front_says_how_a_value_was_written() -> None:
    # 1. The first version wrote two fields, the second renamed none and added one.
    first = record({"name": "a", "type": "int"}, {"name": "b", "type": "string"})
    second = record(
        {"name": "a", "type": "long"},
        {"name": "b", "type": "string"},
        {"name": "c", "type": ["null", "double"], "default": None},
        {"name": "d", "type": "string", "default": "none"},
    )
    values = [
        encoded(first, {"a": 1, "b": "x"}, 11),
        encoded(second, {"a": 2, "b": "y", "c": 0.5, "d": "z"}, 12),
        encoded(second, {"a": 3, "b": "y", "c": 0.5, "d": "z"}, 13),
        b"\x01" + encoded(second, {"a": 4, "b": "y", "c": 0.5, "d": "z"}, 12)[1:],
        b"\x00\x00",
        None,
    ]
    # 2. The reader knows both by their numbers, and has defaults for what the first did not write.
    parser = make_parser(second, "avro-confluent", n11=first, n12=second)
    parser = pickle.loads(pickle.dumps(parser))
    parsed = parser.parse(pa.array(values, pa.binary()))
    assert parsed.columns.to_pylist() == [
        {"a": 1, "b": "x", "c": None, "d": "none"},
        {"a": 2, "b": "y", "c": 0.5, "d": "z"},
        {"a": None, "b": None, "c": None, "d": None},
    ]
    # 3. What it does not know is a misfit, not a guess.
    assert parsed.fits.to_pylist() == [True, True, False, False, False, True]
    assert parsed.reasons == [
        "is written with schema number 13, which was not given",
        "does not begin with a zero byte and the number of a schema",
        "does not begin with a zero byte and the number of a schema",
    ]


def test_without_schemas_by_number_the_one_given_counts() -> None:
    schema = record({"name": "a", "type": "int"})
    parser = make_parser(schema, "avro-confluent")
    parsed = parser.parse(pa.array([encoded(schema, {"a": 5}, 2**32 - 1)], pa.binary()))
    assert parsed.columns.to_pylist() == [{"a": 5}]


def test_a_writer_that_does_not_fit_the_reader_makes_misfits() -> None:
    old = record({"name": "a", "type": "string"})
    new = record({"name": "a", "type": "int"})
    parser = make_parser(new, "avro-confluent", n1=old)
    parsed = parser.parse(pa.array([encoded(old, {"a": "x"}, 1)], pa.binary()))
    assert parsed.fits.to_pylist() == [False]
    assert "SchemaResolutionError" in parsed.reasons[0]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("string", b"", "EOFError"),
        ("string", b"\x04a", "EOFError"),
        ("string", b"\x03a", "EOFError"),
        ("string", b"\x02\xff", "UnicodeDecodeError"),
        ("string", b"\x02ab", "1 bytes are left"),
        ("int", b"\xfe\xff\xff\xff\xff\x7f", "too large"),
        (NAMED, b"\x08", "IndexError"),
        (["null", "int"], b"\x08", "IndexError"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\x7f\x02", "EOFError"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01", ""),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            b"\x04\x7f\xff",
            "at `$.a`",
        ),
    ],
)
def test_a_misfit_says_why(kind: object, value: bytes, reason: str) -> None:
    good = record({"name": "a", "type": kind})
    parsed = make_parser(good).parse(pa.array([value], pa.binary()))
    assert parsed.fits.to_pylist() == [False]
    assert parsed.columns.num_rows == 0
    assert reason in parsed.reasons[0]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("long", "must be a record"),
        ({"type": "record"}, "not an Avro schema"),
        (record({"name": "a", "type": "nothing"}), "not an Avro schema"),
        (record(), "without fields"),
        (record({"name": "a", "type": "null"}), "only null"),
        (record({"name": "a", "type": {"type": "array", "items": "null"}}), "only null"),
        (record({"name": "a", "type": {"type": "fixed", "name": "F", "size": 0}}), "no bytes"),
        (record({"name": "a", "type": ["int", "string"]}), "union"),
        (record({"name": "a", "type": ["null"]}), "union"),
        (record({"name": "a", "type": ["null", "Event"]}), "refers to itself"),
        (record({"name": "a", "type": "int"}, {"name": "A", "type": "int"}), "one column"),
        (
            record(
                {
                    "name": "a",
                    "type": {"type": "bytes", "logicalType": "decimal", "precision": 50},
                }
            ),
            "beyond",
        ),
    ],
)
def test_a_schema_that_makes_no_columns_is_refused(schema: object, reason: str) -> None:
    with pytest.raises(SchemaRefused) as raised:
        make_parser(schema)
    assert reason in raised.value.reason
