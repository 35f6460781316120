"""Readers of a typed topic: what its table keeps for them, old files, and the log's end."""

from __future__ import annotations

import inspect
import io
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from firnmq.errors import InvalidArgument
from firnmq.lake.plans.plan import Plan, ShardPlan, TablePlace, Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.reading.projection import by_name, projected
from firnmq.lake.spark.columns import RECORD, arrow_schema, check_schema, spark_schema
from firnmq.lake.spark.tail import ParsedSplit, Part, read_parsed
from firnmq.lake.tables.catalogs.catalog import DEAD_LETTERS, OpenCatalog
from firnmq.lake.tables.catalogs.sqlite_peek import Peeked, peek_mode, peek_table
from firnmq.lake.tables.evolve import add_columns
from firnmq.lake.tables.files.rows import read_columns
from firnmq.lake.tables.history import History, NotTyped, Values, is_certainly_raw, plan_history
from firnmq.lake.tables.table import Advance, TopicTable, make_table
from firnmq.lake.typed import (
    DEAD_LETTERS as DEAD_LETTER_ROWS,
)
from firnmq.lake.typed import (
    KeptSchema,
    Parser,
    SchemaKind,
    SchemaRefused,
    dead_letters,
    typed_schema,
)
from firnmq.lake.typed.kept import KEPT_BYTES_MAX, SCHEMA
from firnmq.record import NewRecord
from tests.conformance.lab import Lab
from tests.unit.lake.lake_lab import LakeTopic
from tests.unit.lake.rows import clicks, open_catalog, raw_rows, written
from tests.unit.lake.test_evolve import NEW, OLD, add_rows, parser_of

KEPT_OLD = KeptSchema.of(OLD.document, "json", {})
KEPT_NEW = KeptSchema.of(NEW.document, "json", {})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[OpenCatalog]:
    with open_catalog(tmp_path) as catalog:
        yield catalog


def typed_table(
    catalog: OpenCatalog, parser: Parser = OLD, kept: KeptSchema | None = KEPT_OLD
) -> TopicTable:
    return make_table(
        catalog,
        topic="clicks",
        topic_id="a1",
        cluster="c1",
        schema=typed_schema(parser),
        mode="typed",
        properties={} if kept is None else kept.properties(),
    )


def plan_of(place: TablePlace, **shard: Any) -> Plan:
    return Plan(
        cluster="c1",
        topic="clicks",
        topic_id="a1",
        made_ms=0,
        options={},
        table=place,
        shards=(ShardPlan(**{"shard": 0, "start_offset": 0, "end_offset": 10, **shard}),),
    )


def history_of(
    catalog: OpenCatalog, wanted: Wanted | None = None, values: Values = "auto", **shard: Any
) -> History:
    return plan_history(plan_of(catalog.place, **shard), wanted or Wanted(), {}, 2**30, values)


def shown(history: History, *names: str, wanted: Wanted | None = None) -> list[dict[str, Any]]:
    """Rows of the history as Spark's columns would have them."""
    target = arrow_schema(spark_schema(history.columns))
    target = pa.schema([target.field(name) for name in names or target.names])
    batches = [
        batch
        for split in history.splits
        for batch in read_columns(split, wanted or Wanted(), target, {})
    ]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(target)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, target).to_pylist()
    return rows


# What a table keeps -------------------------------------------------------------------------------


def test_a_table_keeps_the_schema_that_fills_it(catalog: OpenCatalog) -> None:
    table = typed_table(catalog)
    assert KeptSchema.found(table.properties) == KEPT_OLD
    # 1. A newer schema comes with its columns, in one commit.
    before = len(table.iceberg.metadata.metadata_log)
    add_columns(table, typed_schema(NEW), KEPT_NEW)
    assert KeptSchema.found(table.properties) == KEPT_NEW
    assert len(table.iceberg.metadata.metadata_log) == before + 1
    # 2. The same again is no commit; other limits for the same columns are one.
    add_columns(table, typed_schema(NEW), KEPT_NEW)
    assert len(table.iceberg.metadata.metadata_log) == before + 1
    stricter = json.loads(NEW.document)
    stricter["properties"]["n"]["minimum"] = 0
    kept = KeptSchema.of(json.dumps(stricter, indent=4), "json", {})
    add_columns(table, typed_schema(NEW), kept)
    assert KeptSchema.found(table.properties) == kept
    assert kept.parser().parse(pa.array([b'{"n": -1}', b'{"n": 1}'])).fits.to_pylist() == [
        *(False, True)
    ]


def test_a_table_from_before_gets_its_schema_by_the_next_sync(catalog: OpenCatalog) -> None:
    table = typed_table(catalog, kept=None)
    assert KeptSchema.found(table.properties) is None
    assert history_of(catalog).schema is None
    add_columns(table, typed_schema(OLD), KEPT_OLD)
    assert history_of(catalog).schema == KEPT_OLD


def test_writers_are_kept_by_their_numbers() -> None:
    old = '{"type": "record", "name": "E", "fields": [{"name": "n", "type": "int"}]}'
    kept = KeptSchema.of(old, "avro-confluent", {12: old, 3: old})
    again = KeptSchema.found(kept.properties())
    assert again == kept
    assert again.parser().kind is SchemaKind.AVRO_CONFLUENT
    assert list(again.parser().writers) == [3, 12]


def test_what_is_too_large_to_be_kept_is_refused() -> None:
    spacious = json.dumps({"properties": {"n": {"type": "integer"}}}) + " " * KEPT_BYTES_MAX
    assert len(KeptSchema.of(spacious, "json", {}).properties()[SCHEMA]) < 200
    wordy = {"properties": {"n": {"type": "integer", "description": "x" * KEPT_BYTES_MAX}}}
    with pytest.raises(SchemaRefused, match="Leave out descriptions"):
        KeptSchema.of(json.dumps(wordy), "json", {})
    with pytest.raises(SchemaRefused):
        KeptSchema.of("[]", "json", {})


# History ------------------------------------------------------------------------------------------


def test_files_from_before_a_column_show_null_at_every_depth(catalog: OpenCatalog) -> None:
    table = typed_table(catalog)
    old = {"n": 1, "one": {"x": 1}, "many": [[{"x": 2}], []], "named": {"k": {"x": 3}}}
    add_rows(table, OLD, range(2), {**old, "at": "2026-01-01T12:00:00Z", "price": "1.25"})
    add_columns(table, typed_schema(NEW), KEPT_NEW)
    new = {
        "n": 2,
        "one": {"x": 1, "y": "a"},
        "many": [[{"y": "b"}]],
        "named": {"k": {"y": "c"}},
        "tag": "t",
        "more": {"x": 5},
    }
    add_rows(table, NEW, range(2, 3), new)
    history = history_of(catalog)
    assert (history.shown, history.ends, history.schema) == ("typed", {0: 3}, KEPT_NEW)
    names = ("n", "one", "many", "named", "tag", "more", "price")
    found = shown(history, "offset", *names)
    assert [row.pop("offset") for row in found] == [0, 1, 2]
    # PyIceberg, which has code of its own for it, sees the same.
    expected = table.reload().iceberg.scan(selected_fields=("offset", *names)).to_arrow()
    assert found == expected.sort_by("offset").select(list(names)).to_pylist()
    assert found[0]["one"] == {"x": 1, "y": None}
    assert found[0]["named"] == [("k", {"x": 3, "y": None})]
    assert (found[2]["tag"], found[2]["price"]) == ("t", None)


def test_a_reader_that_knows_fewer_fields_gets_those(catalog: OpenCatalog) -> None:
    table = typed_table(catalog)
    known = arrow_schema(spark_schema(table.columns()))
    add_columns(table, typed_schema(NEW), KEPT_NEW)
    add_rows(table, NEW, range(1), {"one": {"x": 1, "y": "a"}, "many": [[{"x": 1, "y": "b"}]]})
    (split,) = history_of(catalog).splits
    (batch,) = read_columns(split, Wanted(), known, {})
    assert batch.schema.equals(known)
    row = batch.to_pylist()[0]
    assert (row["one"], row["many"]) == ({"x": 1}, [[{"x": 1}]])


def test_a_column_that_was_renamed_is_found_by_its_id(catalog: OpenCatalog) -> None:
    table = typed_table(catalog)
    add_rows(table, OLD, range(1), {"n": 7, "one": {"x": 1}})
    with table.iceberg.update_schema() as update:
        update.rename_column("n", "number")
        update.rename_column(("one", "x"), "ex")
    assert shown(history_of(catalog), "number", "one") == [{"number": 7, "one": {"ex": 1}}]


def test_rows_are_chosen_and_deleted_as_in_raw_tables(catalog: OpenCatalog) -> None:
    add_rows(typed_table(catalog), OLD, range(10), {"n": 1})

    def offsets(wanted: Wanted, **shard: Any) -> list[int]:
        history = history_of(catalog, wanted, **shard)
        return [row["offset"] for row in shown(history, "offset", wanted=wanted)]

    assert offsets(Wanted(start_offsets={0: 3}, end_offsets={0: 5})) == [3, 4]
    assert offsets(Wanted(keys=(b"key-4", b"key-8"))) == [4, 8]
    assert offsets(Wanted(tags=("red",))) == [1, 3, 5, 7, 9]
    assert offsets(Wanted(), holes=(2, 3), dead_keys=((b"key-5", 9),)) == [0, 1, 4, 6, 7, 8, 9]
    assert offsets(Wanted(shards=(1,))) == []


def test_records_as_they_are_are_not_in_a_typed_table(catalog: OpenCatalog) -> None:
    add_rows(typed_table(catalog), OLD, range(10), {"n": 1})

    def hidden(wanted: Wanted | None = None, **shard: Any) -> Mapping[int, int]:
        history = history_of(catalog, wanted, "raw", **shard)
        assert (history.shown, history.ends, history.splits) == ("raw", {}, [])
        return history.hidden

    assert hidden() == {}
    # The log begins at 6: what is before is only in the table, and is missed if it is wanted.
    assert hidden(start_offset=6, end_offset=12) == {0: 0}
    assert hidden(Wanted(start_offsets={0: 5}), start_offset=6, end_offset=12) == {0: 5}
    assert hidden(Wanted(keys=(b"key-4",)), start_offset=6, end_offset=12) == {0: 4}
    assert hidden(Wanted(tags=("red",)), start_offset=6, end_offset=12) == {0: 1}
    # The same file has what is left of the log, which no reader needs, and what was deleted.
    assert hidden(Wanted(start_offsets={0: 6}), start_offset=6, end_offset=12) == {}
    assert hidden(Wanted(keys=(b"key-8",)), start_offset=6, end_offset=12) == {}
    gone = tuple(range(6))
    assert hidden(start_offset=6, end_offset=12, holes=gone) == {}
    assert hidden(Wanted(keys=(b"nobody",)), start_offset=6, end_offset=12) == {}
    assert hidden(Wanted(end_timestamp_ms=0), start_offset=6, end_offset=12) == {}


def test_columns_of_a_topic_that_has_none_are_refused(catalog: OpenCatalog, tmp_path: Path) -> None:
    nowhere = TablePlace(catalog=f"sqlite:///{tmp_path}/no.db", warehouse="file:///x", name="t")
    with pytest.raises(NotTyped, match="--schema"):
        plan_history(plan_of(nowhere), Wanted(), {}, 2**30, "typed")
    assert not (tmp_path / "no.db").exists()
    with pytest.raises(NotTyped, match="no table"):
        history_of(catalog, values="typed")
    clicks(catalog)
    with pytest.raises(NotTyped, match="is raw"):
        history_of(catalog, values="dead_letters")
    assert history_of(catalog).shown == "raw"


def test_dead_letters_have_their_own_ends(catalog: OpenCatalog) -> None:
    typed_table(catalog)
    with pytest.raises(NotTyped, match="dead letters"):
        history_of(catalog, values="dead_letters")
    dead = make_table(
        catalog,
        topic="clicks",
        topic_id="a1",
        cluster="c1",
        schema=DEAD_LETTER_ROWS,
        mode="dead_letters",
        namespace=DEAD_LETTERS,
    )
    letters = dead_letters(raw_rows(0, range(3)), ["bad"] * 3)
    dead.advance(Advance(base={}, ends={0: 3}, files=written(dead, letters)))
    history = history_of(catalog, values="dead_letters")
    assert (history.shown, history.ends, history.schema) == ("dead_letters", {0: 3}, KEPT_OLD)
    assert shown(history, "offset", "reason", "value")[1] == {
        "offset": 1,
        "reason": "bad",
        "value": b"value 1",
    }
    # A reader of raw records misses these too, once the log has dropped them.
    assert history_of(catalog, values="raw").hidden == {}
    assert history_of(catalog, values="raw", start_offset=2).hidden == {0: 0}


def test_a_look_into_the_catalog_finds_the_mode(catalog: OpenCatalog) -> None:
    plan = plan_of(catalog.place)
    assert peek_table(catalog.place, "clicks") is Peeked.NO_TABLE
    assert is_certainly_raw(plan, {})
    clicks(catalog)
    assert peek_mode(catalog.place, "clicks", {}) == "raw"
    assert is_certainly_raw(plan, {})
    catalog.iceberg.drop_table("topics.clicks")
    table = typed_table(catalog)
    assert peek_mode(catalog.place, "clicks", {}) == "typed"
    assert not is_certainly_raw(plan, {})
    # Unexpected values are left to the caller.
    place = table.iceberg.metadata_location.removeprefix("file://")
    Path(place).write_bytes(b"{")
    assert peek_mode(catalog.place, "clicks", {}) is Peeked.NOT_KNOWN
    rest = TablePlace(catalog="https://catalog.example", warehouse="s3://x", name="topics.clicks")
    assert peek_table(rest, "clicks") is Peeked.NOT_KNOWN


# The log's end ------------------------------------------------------------------------------------


def tail(topic: LakeTopic, kept: KeptSchema, target: pa.Schema, part: Part = "typed") -> Any:
    batches = [
        batch
        for split in split_plan(topic.plan())
        for batch in read_parsed(
            ParsedSplit(split=split, schema=kept, part=part), Wanted(), target, {}
        )
    ]
    return pa.Table.from_batches(batches, target).to_pylist()


def test_the_tail_is_parsed_and_misfits_are_counted(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(
        NewRecord(value=b'{"n": 1, "one": {"x": 1}, "named": {"k": {"x": 2}}}', key=b"a"),
        NewRecord(value=b"not JSON"),
        NewRecord(value=None, key=b"gone"),
        NewRecord(value=b'{"n": "text"}'),
    )
    # The table has had more columns for a while than the schema that its end is parsed by.
    target = arrow_schema(spark_schema(typed_schema(NEW)))
    with caplog.at_level(logging.WARNING, "firnmq"):
        rows = tail(topic, KEPT_OLD, target)
    assert [(row["offset"], row["key"], row["n"], row["tag"]) for row in rows] == [
        (0, b"a", 1, None),
        (2, b"gone", None, None),
    ]
    assert rows[0]["one"] == {"x": 1, "y": None}
    assert rows[0]["named"] == [("k", {"x": 2, "y": None})]
    assert [record.fields["count"] for record in caplog.records] == [2]  # type: ignore[attr-defined]
    # A reader of dead letters gets these, with the reason.
    target = arrow_schema(spark_schema(DEAD_LETTER_ROWS))
    misfits = tail(topic, KEPT_OLD, target, "dead_letters")
    assert [(row["offset"], row["value"]) for row in misfits] == [
        (1, b"not JSON"),
        (3, b'{"n": "text"}'),
    ]
    assert "Expected `int" in misfits[1]["reason"]


def test_no_column_but_the_offset_is_asked_for(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(NewRecord(value=b"{}"), NewRecord(value=b"["), NewRecord(value=b"{}"))
    target = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    assert tail(topic, KEPT_OLD, target) == [{"offset": 0}, {"offset": 2}]


def test_avro_and_its_times(lab: Lab) -> None:
    schema = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
            {
                "name": "days",
                "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}},
            },
            {"name": "raw", "type": {"type": "map", "values": "bytes"}},
        ],
    }
    kept = KeptSchema.of(json.dumps(schema), "avro", {})
    encoded = io.BytesIO()
    value = {"at": 30_600_000, "days": [0, 1], "raw": {"k": b"\xff"}}
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(schema), value)
    topic = LakeTopic(lab)
    topic.shard.append(NewRecord(value=encoded.getvalue()), NewRecord(value=b"\x01"))
    columns = spark_schema(typed_schema(kept.parser()))
    (row,) = tail(topic, kept, arrow_schema(columns))
    # Spark has no type for times of day that all its functions take; texts sort like them.
    assert row["at"] == "08:30:00.000000"
    assert [day.isoformat() for day in row["days"]] == ["1970-01-01", "1970-01-02"]
    assert row["raw"] == [("k", b"\xff")]


# Spark's types ------------------------------------------------------------------------------------


def test_a_tables_types_are_those_that_spark_makes_of_them(catalog: OpenCatalog) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    parser = parser_of({"properties": {"x": {"type": "number", "format": "float"}}})
    table = typed_table(catalog, parser, KeptSchema.of(parser.document, "json", {}))
    columns = spark_schema(table.columns())
    assert columns["price"].dataType.simpleString() == "decimal(9,2)"
    assert columns["many"].dataType.simpleString() == "array<array<struct<x:float>>>"
    assert columns["named"].dataType.simpleString() == "map<string,struct<x:float>>"
    assert not columns["offset"].nullable
    assert columns["n"].nullable
    # Some versions of PySpark want the zone named, others know none.
    takes_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    made = to_arrow_schema(columns, **({"timezone": "UTC"} if takes_zone else {}))
    assert arrow_schema(columns).equals(made, check_metadata=True)
    check_schema(columns, columns)
    with pytest.raises(InvalidArgument, match="values=raw"):
        check_schema(RECORD, columns)
    with pytest.raises(InvalidArgument, match="which no sync makes"):
        spark_schema(pa.schema([pa.field("id", pa.uint16())]))


# Projections --------------------------------------------------------------------------------------


INNER = pa.struct([("x", pa.int64()), ("y", pa.string())])
NESTED = pa.schema(
    [
        ("one", INNER),
        ("many", pa.list_(pa.list_(INNER))),
        ("named", pa.map_(pa.string(), INNER)),
    ]
)
WANTED = pa.struct([("z", pa.map_(pa.string(), pa.int32())), ("x", pa.int32())])
TARGET = pa.schema(
    [
        ("named", pa.map_(pa.string(), WANTED)),
        ("absent", pa.map_(pa.string(), pa.list_(pa.decimal128(5, 2)))),
        ("many", pa.list_(pa.list_(WANTED))),
        ("one", WANTED),
    ]
)
NESTED_ROWS: list[dict[str, Any]] = [
    {"one": None, "many": None, "named": None},
    {"one": {"x": 1, "y": "a"}, "many": [], "named": []},
    {"one": {"x": None, "y": "b"}, "many": [[], None], "named": [("k", None)]},
    {"one": {"x": 4, "y": None}, "many": [[{"x": 5}, None]], "named": [("k", {"x": 6})]},
]


def _expected(value: Any) -> Any:
    return None if value is None else {"z": None, "x": value.get("x")}


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("count", range(5))
def test_projections_of_parts_of_arrays(first: int, count: int) -> None:
    batch = pa.RecordBatch.from_pylist(NESTED_ROWS, NESTED).slice(first, count)
    found = projected(batch, TARGET, by_name)
    found.validate(full=True)
    assert found.to_pylist() == [
        {
            "named": None
            if row["named"] is None
            else [(key, _expected(value)) for key, value in row["named"]],
            "absent": None,
            "many": None
            if row["many"] is None
            else [None if inner is None else [*map(_expected, inner)] for inner in row["many"]],
            "one": _expected(row["one"]),
        }
        for row in NESTED_ROWS[first : first + count]
    ]
