"""Rows of a typed table, dead letters, and what a new schema adds to a table."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from firnmq.lake.reading.schema import RAW
from firnmq.lake.typed import (
    DEAD_LETTERS,
    Addition,
    Parser,
    SchemaConflict,
    additions,
    dead_letters,
    typed_rows,
    typed_schema,
)

SCHEMA = {"properties": {"n": {"type": "integer"}, "key": {"type": "string"}}}


def raw_rows(*values: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "shard": 1,
                "offset": 100 + place,
                "timestamp": datetime(2024, 1, 1, tzinfo=UTC),
                "key": b"k%d" % place,
                "value": value,
                "headers": [{"key": "h", "value": None}],
                "tags": ["t"],
            }
            for place, value in enumerate(values)
        ],
        RAW,
    )


def test_every_row_is_in_one_of_the_two() -> None:
    parser = Parser.from_document(json.dumps(SCHEMA), "json")
    raw = raw_rows(b'{"n": 1, "key": "a"}', b"bad", None, b'{"n": "x"}')
    both = typed_rows(raw, parser)
    assert both.rows.schema == typed_schema(parser)
    assert both.rows.schema.names == [
        *("shard", "offset", "timestamp", "key", "headers", "tags", "n", "value_key")
    ]
    assert both.rows.select(["offset", "key", "n", "value_key"]).to_pylist() == [
        {"offset": 100, "key": b"k0", "n": 1, "value_key": "a"},
        {"offset": 102, "key": b"k2", "n": None, "value_key": None},
    ]
    assert both.misfits.schema == DEAD_LETTERS
    letters = both.misfits.to_pylist()
    assert [(row["offset"], row["value"]) for row in letters] == [
        (101, b"bad"),
        (103, b'{"n": "x"}'),
    ]
    assert letters[0]["headers"] == [{"key": "h", "value": None}]
    assert "malformed" in letters[0]["reason"]
    assert letters[1]["reason"] == "Expected `int`, got `str` - at `$.n`"


@pytest.mark.parametrize("values", [[], [b'{"n": 1}'], [b"bad"]])
def test_either_may_be_empty(values: list[bytes]) -> None:
    parser = Parser.from_document(json.dumps(SCHEMA), "json")
    both = typed_rows(raw_rows(*values), parser)
    assert both.rows.num_rows + both.misfits.num_rows == len(values)
    both.rows.validate(full=True)
    both.misfits.validate(full=True)


def test_long_reasons_are_cut() -> None:
    (row,) = dead_letters(raw_rows(b"x"), ["r" * 5_000]).to_pylist()
    assert row["reason"] == "r" * 999 + "…"


def field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind)


def test_nothing_is_added_to_the_same_columns() -> None:
    had = [field("a", pa.large_string()), field("b", pa.large_list(pa.large_binary()))]
    has = [field("b", pa.list_(pa.field("element", pa.binary()))), field("a", pa.string())]
    assert additions(had, has) == []


def test_columns_are_added_at_every_depth_in_the_schemas_order() -> None:
    had = [
        field("a", pa.struct([field("x", pa.int64())])),
        field("l", pa.list_(pa.struct([field("x", pa.int64())]))),
        field("m", pa.map_(pa.string(), pa.struct([field("x", pa.int64())]))),
    ]
    wider = pa.struct([field("x", pa.int64()), field("y", pa.string())])
    has = [
        field("new", pa.date32()),
        field("a", wider),
        field("l", pa.list_(wider)),
        field("m", pa.map_(pa.string(), wider)),
        field("whole", wider),
    ]
    assert additions(had, has) == [
        Addition(path=("new",), arrow=pa.date32()),
        Addition(path=("a", "y"), arrow=pa.string()),
        Addition(path=("l", "element", "y"), arrow=pa.string()),
        Addition(path=("m", "value", "y"), arrow=pa.string()),
        Addition(path=("whole",), arrow=wider),
    ]
    assert Addition(path=("a", "y"), arrow=pa.string()).name == "a.y"


@pytest.mark.parametrize(
    ("had", "has", "column", "said"),
    [
        ([field("a", pa.int64())], [], "a", "keep the field in the schema"),
        (
            [field("a", pa.struct([field("b", pa.int64())]))],
            [field("a", pa.struct([field("c", pa.int64())]))],
            "a.b",
            "keep the field in the schema",
        ),
        ([field("a", pa.int32())], [field("a", pa.int64())], "a", "int32 in the table and int64"),
        (
            [field("a", pa.list_(pa.int64()))],
            [field("a", pa.list_(pa.string()))],
            "a.element",
            "int64 in the table and string in the schema",
        ),
        (
            [field("a", pa.map_(pa.string(), pa.int64()))],
            [field("a", pa.struct([field("x", pa.int64())]))],
            "a",
            "map to int64 in the table and struct in the schema",
        ),
        (
            [field("a", pa.timestamp("us", "UTC"))],
            [field("a", pa.timestamp("us"))],
            "a",
            "timestamp in the table and timestamp without zone",
        ),
        ([field("a", pa.decimal128(9, 2))], [field("a", pa.decimal128(9, 3))], "a", "another name"),
    ],
)
def test_what_is_gone_or_changed_is_refused(
    had: list[pa.Field], has: list[pa.Field], column: str, said: str
) -> None:
    with pytest.raises(SchemaConflict) as raised:
        additions(had, has)
    assert raised.value.column == column
    assert said in str(raised.value)
