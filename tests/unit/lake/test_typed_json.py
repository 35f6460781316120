"""JSON Schema: which columns it makes, what fits, and why something does not."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from firnmq.errors import InvalidArgument
from firnmq.lake.reading.schema import TIME
from firnmq.lake.typed import Parsed, Parser, SchemaRefused


def make_parser(properties: object, **more: object) -> Parser:
    return Parser.from_document(
        json.dumps({"type": "object", "properties": properties, **more}), "json"
    )


def parse(parser: Parser, *values: object) -> Parsed:
    """Values are JSON text as bytes, None, or anything that JSON can be made of."""
    encoded = [
        value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        for value in values
    ]
    return parser.parse(pa.array(encoded, pa.binary()))


def column(properties: object, *values: object, **more: object) -> list[object]:
    """Values of the column `a`; all must fit."""
    parsed = parse(make_parser({"a": properties}, **more), *({"a": value} for value in values))
    assert parsed.reasons == []
    found: list[object] = parsed.columns.column("a").to_pylist()
    return found


def misfit(properties: object, value: object, **more: object) -> str:
    """The reason why {"a": value} does not fit."""
    value = value if isinstance(value, bytes) else json.dumps({"a": value}).encode()
    parsed = parse(make_parser({"a": properties}, **more), value)
    assert parsed.fits.to_pylist() == [False]
    assert parsed.columns.num_rows == 0
    (reason,) = parsed.reasons
    return reason


@pytest.mark.parametrize(
    ("schema", "arrow", "value", "shown"),
    [
        ({"type": "string"}, pa.string(), "grün", "grün"),
        ({"type": "boolean"}, pa.bool_(), True, True),
        ({"type": "integer"}, pa.int64(), -(2**63), -(2**63)),
        ({"type": "integer", "format": "int32"}, pa.int32(), 2**31 - 1, 2**31 - 1),
        ({"type": "number"}, pa.float64(), 1.5, 1.5),
        ({"type": "number"}, pa.float64(), 3, 3.0),
        ({"type": ["integer", "number"]}, pa.float64(), 3, 3.0),
        ({"type": "number", "format": "float"}, pa.float32(), 0.25, 0.25),
        ({"enum": ["buy", "sell"]}, pa.string(), "buy", "buy"),
        ({"type": "integer", "enum": [1, 2]}, pa.int64(), 2, 2),
        ({"const": "click"}, pa.string(), "click", "click"),
        (
            {"type": "string", "format": "date-time"},
            TIME,
            "2024-02-29T12:30:00.5+02:00",
            datetime(2024, 2, 29, 10, 30, 0, 500_000, UTC),
        ),
        ({"type": "string", "format": "date"}, pa.date32(), "2024-02-29", date(2024, 2, 29)),
        (
            {"type": "integer", "format": "timestamp-millis"},
            TIME,
            1_709_209_800_500,
            datetime(2024, 2, 29, 12, 30, 0, 500_000, UTC),
        ),
        (
            {"type": "integer", "format": "timestamp-seconds"},
            TIME,
            -1,
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        ),
        (
            {"type": "string", "format": "decimal", "precision": 9, "scale": 2},
            pa.decimal128(9, 2),
            "12.50",
            Decimal("12.50"),
        ),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary(), "AP8=", b"\x00\xff"),
        (
            {"type": "string", "format": "uuid"},
            pa.string(),
            "123e4567-e89b-12d3-a456-426614174000",
            "123e4567-e89b-12d3-a456-426614174000",
        ),
        ({"type": "string", "format": "email"}, pa.string(), "not one", "not one"),
        ({}, pa.string(), {"any": [1, None]}, '{"any": [1, null]}'),
        (True, pa.string(), 3, "3"),
        ({"type": "object"}, pa.string(), {"any": 1}, '{"any": 1}'),
        (
            {"type": "array", "items": {"type": "integer"}},
            pa.list_(pa.field("element", pa.int64())),
            [1, 2],
            [1, 2],
        ),
        (
            {"type": "object", "additionalProperties": {"type": "number"}},
            pa.map_(pa.string(), pa.float64()),
            {"x": 1, "y": 2.5},
            [("x", 1.0), ("y", 2.5)],
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
)
def test_a_type_is_a_column(
    schema: dict[str, object], arrow: pa.DataType, value: object, shown: object
) -> None:
    parser = make_parser({"a": schema})
    assert parser.arrow_fields() == [pa.field("a", arrow)]
    assert column(schema, value) == [shown]


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "string"}, 1, "Expected `str`, got `int` - at `$.a`"),
        ({"type": "integer"}, True, "Expected `int`, got `bool` - at `$.a`"),
        ({"type": "integer"}, 2**63, "<= 9223372036854775807"),
        ({"type": "integer"}, 1.5, "Expected `int`, got `float`"),
        ({"type": "integer", "format": "int32"}, 2**31, "<= 2147483647"),
        ({"type": "integer", "exclusiveMinimum": 3, "minimum": 1}, 3, ">= 4"),
        ({"type": "integer", "exclusiveMaximum": 3}, 3, "<= 2"),
        ({"type": "integer", "multipleOf": 5}, 7, "multiple of 5"),
        ({"type": "number", "maximum": 10}, 10.5, "<= 10.0"),
        ({"type": "number", "format": "float"}, 1e300, "<= 3.4"),
        ({"type": "number"}, b'{"a": 1e999}', "out of range"),
        ({"type": "string", "maxLength": 2}, "abc", "length <= 2"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "A", "matching regex"),
        ({"enum": ["x"]}, "y", "Invalid enum value 'y'"),
        ({"type": "string", "format": "date-time"}, "2024-01-01T00:00:00", "timezone"),
        ({"type": "string", "format": "date-time"}, "0001-01-01T00:00:00+09:00", "years 1 to 9999"),
        ({"type": "integer", "format": "timestamp-seconds"}, 2**62, "overflow - at `$.a`"),
        ({"type": "integer", "format": "timestamp-micros"}, 2**62, "years 1 to 9999"),
        ({"type": "string", "format": "date"}, "2023-02-29", "date"),
        ({"type": "string", "format": "uuid"}, "123", "matching regex"),
        (
            {"type": "number", "format": "decimal", "scale": 2},
            1.234,
            "decimal(38, 2) without rounding - at `$.a`",
        ),
        ({"type": "string", "format": "decimal", "scale": 2}, "NaN", "decimal(38, 2)"),
        (
            {"type": "string", "format": "decimal", "precision": 4, "scale": 2},
            "123.00",
            "decimal(4, 2) without rounding - at `$.a`",
        ),
        ({"type": "string", "contentEncoding": "base64"}, "A", "base64"),
        ({"type": "array", "items": {"type": "string"}}, ["x", 1], "at `$.a[1]`"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, [], "length >= 1"),
        ({"type": "array", "items": {"type": "string"}}, ["x", None], "got `null` - at `$.a[1]`"),
        ({"type": "string"}, b'{"a": "\xff"}', "not UTF-8"),
        ({}, b'{"a": "\xff"}', "utf-8"),
        ({}, b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        ({"type": "string"}, b'{"a": "x"} {', "malformed"),
        ({"type": "string"}, b"", "truncated"),
        ({"type": "string"}, b"[]", "Expected `object`, got `array`"),
    ],
)
def test_a_misfit_says_why(schema: dict[str, object], value: object, reason: str) -> None:
    said = misfit(schema, value)
    assert reason in said, said


def test_a_decimal_is_a_number_or_a_text_and_is_never_rounded() -> None:
    schema = {"type": "number", "format": "decimal", "precision": 20, "scale": 3}
    parser = make_parser({"a": schema})
    parsed = parse(parser, b'{"a": 12345678901234567.125}', b'{"a": "0.1"}', b'{"a": 1.0000}')
    assert parsed.reasons == []
    assert parsed.columns.column("a").to_pylist() == [
        Decimal("12345678901234567.125"),
        Decimal("0.1"),
        Decimal(1),
    ]


def test_left_out_null_and_default_are_three_things() -> None:
    properties = {
        "must": {"type": "string"},
        "may": {"type": "string"},
        "null": {"type": ["string", "null"]},
        "filled": {"type": "integer", "default": 7},
        "list": {"type": "array", "items": {"type": "integer"}, "default": [1]},
        "text": {},
    }
    parser = make_parser(properties, required=["must"])
    parsed = parse(
        parser,
        {"must": "m"},
        {"must": "m", "may": "x", "null": None, "filled": 1, "list": [], "text": None},
        {"must": "m", "may": None},
        {"must": "m", "filled": None},
        {},
    )
    assert parsed.fits.to_pylist() == [True, True, False, False, False]
    assert parsed.columns.to_pylist() == [
        {"must": "m", "may": None, "null": None, "filled": 7, "list": [1], "text": None},
        {"must": "m", "may": "x", "null": None, "filled": 1, "list": [], "text": None},
    ]
    assert parsed.reasons == [
        "Expected `str`, got `null` - at `$.may`",
        "Expected `int`, got `null` - at `$.filled`",
        "Object missing required field `must`",
    ]


def test_a_tombstone_is_a_row_of_nulls() -> None:
    parser = make_parser(
        {
            "a": {"type": "integer"},
            "b": {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"]},
            "d": {"type": "array", "items": {"type": "integer"}},
        },
        required=["a", "b"],
    )
    parsed = parse(parser, {"a": 1, "b": {"c": "x"}, "d": [1]}, None, None, {"a": 2, "b": {}})
    assert parsed.fits.to_pylist() == [True, True, True, False]
    assert parsed.columns.to_pylist() == [
        {"a": 1, "b": {"c": "x"}, "d": [1]},
        {"a": None, "b": None, "d": None},
        {"a": None, "b": None, "d": None},
    ]
    assert parsed.columns.column("b").null_count == 2


def test_objects_and_lists_nest() -> None:
    point = {
        "type": "object",
        "properties": {
            "lat": {"type": "number"},
            "names": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        },
    }
    schema = {
        "type": ["array", "null"],
        "items": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}]}},
    }
    values = [
        [[{"lat": 1, "names": {"en": "one", "de": None}}, None], []],
        None,
        [],
        [[{"names": {}}]],
    ]
    shown = column(schema, *values, **{"$defs": {"p": point}})
    assert shown == [
        [[{"lat": 1.0, "names": [("en", "one"), ("de", None)]}, None], []],
        None,
        [],
        [[{"lat": None, "names": []}]],
    ]


def test_other_properties_are_left_out_or_refused() -> None:
    assert column({"type": "string"}, "x") == ["x"]
    parsed = parse(make_parser({"a": {"type": "string"}}), {"a": "x", "b": 1})
    assert parsed.columns.to_pylist() == [{"a": "x"}]
    parsed = parse(make_parser({"a": {}}, additionalProperties=False), {"a": "x", "b": 1})
    assert parsed.reasons == ["Object contains unknown field `b`"]


def test_misfits_stay_in_order_among_many() -> None:
    parser = make_parser(
        {"n": {"type": "integer"}, "d": {"type": "string", "format": "decimal", "scale": 0}}
    )
    values: list[object] = [{"n": n, "d": "1"} for n in range(1_000)]
    values[3] = b"no JSON"
    values[500] = {"n": 500, "d": "0.5"}
    values[501] = {"n": "text"}
    values[999] = {"n": 999, "d": "Infinity"}
    parsed = parse(parser, *values)
    bad = [place for place, fits in enumerate(parsed.fits.to_pylist()) if not fits]
    assert bad == [3, 500, 501, 999]
    assert parsed.columns.column("n").to_pylist() == [n for n in range(1_000) if n not in bad]
    assert ["malformed" in reason for reason in parsed.reasons] == [True, False, False, False]
    assert "`$.d`" in parsed.reasons[1]
    assert "`$.n`" in parsed.reasons[2]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_values_come_in_any_binary_type(kind: pa.DataType) -> None:
    parser = make_parser({"a": {"type": "integer"}})
    parsed = parser.parse(pa.array([b'{"a": 1}', None, b"x"], kind))
    assert parsed.columns.to_pylist() == [{"a": 1}, {"a": None}]
    assert parser.parse(pa.array([], kind)).columns.num_rows == 0


def test_names_become_ones_that_sql_can_say() -> None:
    parser = make_parser(
        {
            "user-agent": {"type": "string"},
            "@type": {"type": "string"},
            "Offset": {"type": "integer"},
            "value": {"type": "integer"},
            "größe": {"type": "object", "properties": {"key": {"type": "integer"}}},
        }
    )
    names = [field.name for field in parser.arrow_fields()]
    assert names == ["user_agent", "_type", "value_Offset", "value_value", "größe"]
    parsed = parse(parser, {"user-agent": "x", "@type": "y", "Offset": 3, "größe": {"key": 4}})
    assert parsed.columns.to_pylist() == [
        {
            "user_agent": "x",
            "_type": "y",
            "value_Offset": 3,
            "value_value": None,
            "größe": {"key": 4},
        }
    ]


@pytest.mark.parametrize(
    ("document", "where", "reason"),
    [
        ("{", "#", "not JSON"),
        ("[]", "#", "must be an object"),
        ('{"type": "string"}', "#", "must be an object with `properties`"),
        ('{"type": "object"}', "#", "must be an object with `properties`"),
        ('{"type": ["object", "null"], "properties": {"a": {}}}', "#", "must be an object"),
        ('{"properties": {"a": {}, "A": {}}}', "#", "'a' and 'A' would be one column"),
        ('{"properties": {"a-b": {}, "a.b": {}}}', "#", "would be one column, a_b"),
        ('{"properties": {"": {}}}', "#", "empty name"),
        ('{"properties": {"a": {}}, "required": ["b"]}', "#", "`required`"),
        ('{"properties": {"a": {"type": "array"}}}', "#/properties/a", "needs `items`"),
        ('{"properties": {"a": {"type": ["string", "integer"]}}}', "#/properties/a", "one type"),
        ('{"properties": {"a": {"type": "date"}}}', "#/properties/a", "one type"),
        ('{"properties": {"a": {"type": "null"}}}', "#/properties/a", "one type"),
        (
            '{"properties": {"a": {"type": "array", "items": {}, "uniqueItems": true}}}',
            "#/properties/a",
            "'uniqueItems' is not supported",
        ),
        ('{"properties": {"a": {"allOf": []}}}', "#/properties/a", "'allOf' is not supported"),
        ('{"properties": {"a": {"not": {}}}}', "#/properties/a", "'not' is not supported"),
        (
            '{"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}',
            "#/properties/a",
            "one schema or null",
        ),
        ('{"properties": {"a": {"$ref": "#/$defs/x"}}}', "#/properties/a", "nothing there"),
        ('{"properties": {"a": {"$ref": "https://x/y"}}}', "#/properties/a", "this document"),
        ('{"properties": {"a": {"$ref": "#"}}}', "#/properties/a", "refers to itself"),
        (
            '{"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "array", '
            '"items": {"$ref": "#/$defs/x"}}}}',
            "#/$defs/x/items",
            "refers to itself",
        ),
        ('{"properties": {"a": {"enum": ["x", 1]}}}', "#/properties/a", "only be texts"),
        ('{"properties": {"a": {"enum": []}}}', "#/properties/a", "only be texts"),
        ('{"properties": {"a": {"type": "integer", "enum": ["x"]}}}', "#/properties/a", "type"),
        ('{"properties": {"a": {"type": "integer", "default": "x"}}}', "#/properties/a", "default"),
        ('{"properties": {"a": {"type": "integer", "minimum": 0.5}}}', "#/properties/a", "integer"),
        ('{"properties": {"a": {"type": "string", "pattern": "("}}}', "#/properties/a", "pattern"),
        (
            '{"properties": {"a": {"type": "string", "format": "decimal"}}}',
            "#/properties/a",
            "`scale`",
        ),
        (
            '{"properties": {"a": {"type": "number", "format": "decimal", "precision": 39, '
            '"scale": 0}}}',
            "#/properties/a",
            "beyond",
        ),
        (
            '{"properties": {"a": {"type": "object", "properties": {"b": {}}, '
            '"additionalProperties": {"type": "string"}}}}',
            "#/properties/a",
            "one of the two",
        ),
    ],
)
def test_a_schema_that_makes_no_columns_is_refused(document: str, where: str, reason: str) -> None:
    with pytest.raises(SchemaRefused) as raised:
        Parser.from_document(document, "json")
    assert raised.value.where == where
    assert reason in raised.value.reason


def test_annotations_say_nothing() -> None:
    noise = {"title": "t", "description": "d", "examples": [1], "$comment": "c", "deprecated": True}
    assert column({"type": "string", **noise}, "x", **{"$schema": "s", "$id": "i"}) == ["x"]


def test_a_kind_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="json, avro, avro-confluent"):
        Parser.from_document("{}", "protobuf")
    with pytest.raises(InvalidArgument, match="carry no number"):
        Parser.from_document('{"properties": {"a": {}}}', "json", writers={1: "{}"})


def test_a_parser_travels() -> None:
    parser = pickle.loads(pickle.dumps(make_parser({"a": {"type": "integer"}})))
    assert parse(parser, {"a": 1}).columns.to_pylist() == [{"a": 1}]
