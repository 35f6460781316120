"""Typed topics through the data source: columns from the table and from the log, each row once."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.sql.types import BinaryType, DoubleType, LongType, StringType, StructField, StructType

from firnmq.errors import InvalidArgument
from firnmq.lake.jobs.query import dead_letter_views, run_query
from firnmq.lake.plans.places import PlanWarning
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.spark import FirnDataSource, register
from firnmq.lake.spark.columns import RECORD
from firnmq.lake.spark.options import read_options
from firnmq.lake.spark.planning import HistoryIsTyped, plan_pieces
from firnmq.lake.spark.streaming import FirnStreamReader
from firnmq.lake.tables.files.rows import HistorySplit
from firnmq.lake.tables.history import TableNotTold
from firnmq.lake.typed import SCHEMA, SchemaNotKept
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.lake.lab import (
    NOON_MS,
    new_topic,
    open_table,
    options_of,
    produce,
    sync_here,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA_1 = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "price": {"type": "string", "format": "decimal", "precision": 9, "scale": 2},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
        "words": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "photo": {"type": "string", "contentEncoding": "base64"},
        "is_new": {"type": "boolean"},
    },
    "required": ["n"],
}
SCHEMA_2 = json.loads(json.dumps(SCHEMA_1))
SCHEMA_2["properties"]["user"] = {"type": "string"}
SCHEMA_2["properties"]["where"]["properties"]["lon"] = {"type": "number"}
FULL = {
    "price": "1.50",
    "at": "2026-01-01T12:00:00.000001Z",
    "day": "2026-01-02",
    "where": {"lat": 1.5, "lon": 2.5},
    "words": ["a", "b"],
    "counts": {"x": 1},
    "photo": "/w==",
    "is_new": True,
    "user": "u",
}
SHOWN = {
    "price": Decimal("1.50"),
    "at": datetime(2026, 1, 1, 12, 0, 0, 1, UTC),
    "day": date(2026, 1, 2),
    "words": ["a", "b"],
    "counts": {"x": 1},
    "photo": bytearray(b"\xff"),
    "is_new": True,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    served = NodeProcess(tmp_path_factory.mktemp("typed") / "data", QUICK)
    served.start()
    yield served
    served.close()


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def events(*numbers: int) -> list[dict[str, Any]]:
    """Every third one does not fit, every third one is a tombstone, all others have everything."""
    values = {
        0: lambda number: json.dumps({"n": number, **FULL}).encode(),
        1: lambda number: b"not JSON %d" % number,
        2: lambda number: None,
    }
    return [
        {
            "partition": number % 2,
            "key": f"key-{number}".encode(),
            "value": values[number % 3](number),
            "timestamp": NOON_MS + number * 60_000,
        }
        for number in numbers
    ]


def fitting(*numbers: int) -> list[tuple[str, int | None]]:
    return sorted((f"key-{n}", None if n % 3 == 2 else n) for n in numbers if n % 3 != 1)


def rows(spark: SparkSession, options: dict[str, str], **more: str) -> list[dict[str, Any]]:
    found = spark.read.format("firn").options(**options).options(**more).load()
    return [row.asDict(recursive=True) for row in found.collect()]


def rows_here(options: dict[str, str], **more: str) -> list[dict[str, Any]]:
    """Records as they are, read without Spark's help."""
    return _read(FirnDataSource({**options, **more}), RECORD)


def seen(found: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    return sorted((row["key"].decode(), row["n"]) for row in found)


def drop_below(node: NodeProcess, topic: str, offsets: dict[int, int]) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": node.address})
    places = [TopicPartition(topic, shard, offset) for shard, offset in offsets.items()]
    for deleted in admin.delete_records(places).values():
        deleted.result(60)


def test_each_record_once_wherever_it_is(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node, "typed")
    options = options_of(node, topic, tmp_path)
    # 1. In the table, by the first schema, and dropped from the log.
    produce(node, topic, events(*range(12)))
    sync_here(options, schema_document=json.dumps(SCHEMA_1))
    drop_below(node, topic, {0: 6, 1: 6})
    # 2. In the table, by a schema with more columns. 3. Only in the log.
    produce(node, topic, events(*range(12, 24)))
    sync_here(options, schema_document=json.dumps(SCHEMA_2))
    produce(node, topic, events(*range(24, 36)))
    found = rows(spark, options)
    assert seen(found) == fitting(*range(36))
    for row in found:
        number = row["n"]
        if number is None:
            assert {row[name] for name in (*SHOWN, "user", "where")} == {None}
            continue
        assert {name: _aware(row[name]) for name in SHOWN} == SHOWN
        is_old = number < 12
        assert row["user"] == (None if is_old else "u")
        assert row["where"] == {"lat": 1.5, "lon": None if is_old else 2.5}
    # 4. Some of the columns and records, over the borders.
    lon = StructType([StructField("lon", DoubleType())])
    some = StructType([StructField("where", lon), StructField("n", LongType())])
    narrow = {"startingOffsets": '{"0": 3, "1": 18}', "endingOffsets": '{"0": 14}'}
    assert sorted(
        (row["n"], row["where"]["lon"])
        for row in _read(FirnDataSource({**options, **narrow}), some)
        if row["n"] is not None
    ) == [(6, None), (12, 2.5), (18, 2.5), (24, 2.5)]
    # 5. Bytes are not in the table, and are not missed without a word.
    with pytest.raises(HistoryIsTyped, match="values=typed"):
        rows_here(options, values="raw")
    in_log = sorted(f"key-{number}".encode() for number in range(12, 36))
    raw = rows_here(options, values="raw", startingOffsets='{"0": 6, "1": 6}')
    assert sorted(row["key"] for row in raw) == in_log
    with pytest.warns(UserWarning, match="only in the table"):
        raw = rows_here(options, values="raw", failOnDataLoss="false")
    assert sorted(row["key"] for row in raw) == in_log
    assert sorted(row["key"] for row in rows_here(options, table="never")) == in_log


def _aware(value: Any) -> Any:
    """Spark gives times in the session's zone, without saying so."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def test_sql_over_columns_and_dead_letters(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node, "typed")
    options = options_of(node, topic, tmp_path)
    produce(node, topic, events(*range(12)))
    sync_here(options, schema_document=json.dumps(SCHEMA_2))
    produce(node, topic, events(*range(12, 18)))
    given = {name: value for name, value in options.items() if name != "topic"}
    view = topic.replace(".", "_")
    found = run_query(
        spark,
        f"SELECT user, count(*) AS c, (SELECT count(*) FROM `{topic}__dead_letters` "
        f"WHERE reason LIKE '%malformed%') AS d FROM {view} WHERE shard = 0 AND offset >= 3 "
        "AND (user IS NULL OR `where`.lon > 2) GROUP BY 1 ORDER BY 1",
        given,
    )
    # In this shard are 6 to 16 of those that count, every other of them.
    assert [tuple(row) for row in found.collect()] == [(None, 2, 6), ("u", 2, 6)]


def test_dead_letters_are_found_in_a_query() -> None:
    query = "SELECT * FROM `web.clicks__dead_letters` JOIN users__dead_letters"
    topics = ["web.clicks", "users", "users__dead_letters"]
    assert dead_letter_views(query, topics) == {"web.clicks__dead_letters": "web.clicks"}
    assert dead_letter_views("SELECT * FROM Web_Clicks__Dead_Letters", topics) == {
        "web_clicks__dead_letters": "web.clicks"
    }


@pytest.mark.streaming
def test_a_stream_of_avro_from_table_and_log(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node, "typed", shards=1)
    options = options_of(node, topic, tmp_path)
    schema = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "long"}]}

    def encoded(number: int) -> dict[str, Any]:
        target = io.BytesIO(b"\x00\x00\x00\x00\x07")
        target.seek(5)
        fastavro.schemaless_writer(target, fastavro.parse_schema(schema), {"n": number})
        return {"value": target.getvalue()}

    def run(query: str) -> list[int]:
        stream = spark.readStream.format("firn").options(**options).load()
        writer = stream.writeStream.format("memory").queryName(query).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / query)).start().awaitTermination()
        return [row["n"] for row in spark.table(query).orderBy("offset").collect()]

    produce(node, topic, [*map(encoded, range(5)), {"value": b"x"}])
    writers = {7: json.dumps(schema)}
    sync_here(
        options,
        schema_document=json.dumps(schema),
        schema_kind="avro-confluent",
        schema_writers=writers,
    )
    drop_below(node, topic, {0: 4})
    produce(node, topic, [*map(encoded, range(5, 8)), {"value": b"x"}])
    assert run("avro_stream") == list(range(8))


def test_a_table_that_does_not_say_its_schema(node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node, "typed")
    options = options_of(node, topic, tmp_path)
    produce(node, topic, events(*range(12)))
    sync_here(options, schema_document=json.dumps(SCHEMA_1))
    catalog, table = open_table(options)
    with catalog, table.iceberg.transaction() as transaction:
        transaction.remove_properties(SCHEMA)
    # 1. All of it in the table: nothing is to be parsed.
    pieces = plan_pieces(read_options(options), Wanted())
    assert all(isinstance(piece, HistorySplit) for piece in pieces)
    # 2. Something in the log. 3. One sync later.
    produce(node, topic, events(12))
    with pytest.raises(SchemaNotKept, match="sync with the schema"):
        plan_pieces(read_options(options), Wanted())
    sync_here(options, schema_document=json.dumps(SCHEMA_1))
    produce(node, topic, events(15))
    assert len(plan_pieces(read_options(options), Wanted())) > len(pieces)


def test_a_stream_of_records_as_they_are_says_what_it_misses(
    node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node, "typed", shards=1)
    options = {**options_of(node, topic, tmp_path), "values": "raw"}
    records = [{**each, "partition": 0} for each in events(*range(6))]
    produce(node, topic, records)
    sync_here(options, schema_document=json.dumps(SCHEMA_1))

    def first(**more: str) -> Any:
        given = read_options({**options, **more}, is_stream=True)
        return FirnStreamReader(given, RECORD).initialOffset()["shards"]

    # 1. The log still has everything. 2. It has not any more, and a later stream is right.
    assert first() == {"0": 0}
    drop_below(node, topic, {0: 4})
    with pytest.raises(HistoryIsTyped):
        first()
    assert first(startingOffsets='{"0": 4}') == {"0": 4}
    with pytest.warns(UserWarning, match="only in the table"):
        assert first(failOnDataLoss="false") == {"0": 4}
    # 3. A stream of columns begins in the table.
    assert first(values="typed") == {"0": 0}


def test_the_table_and_its_columns_change_while_a_data_frame_waits(
    node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node, "typed")
    options = options_of(node, topic, tmp_path)
    source = FirnDataSource(options)
    # 1. A frame made before there was a table shows records, whatever comes.
    columns = source.schema()
    assert columns == RECORD
    produce(node, topic, events(0))
    sync_here(options, schema_document=json.dumps(SCHEMA_1))
    assert [row["value"] for row in _read(source, columns)] == [events(0)[0]["value"]]
    # 2. One made of columns has these, also when the table gets more.
    source = FirnDataSource(options)
    columns = source.schema()
    assert "user" not in columns.names
    sync_here(options, schema_document=json.dumps(SCHEMA_2))
    produce(node, topic, events(3, 6))
    sync_here(options, schema_document=json.dumps(SCHEMA_2))
    produce(node, topic, events(9))
    found = _read(source, columns)
    assert sorted(row["n"] for row in found) == [0, 3, 6, 9]
    assert {tuple(row["where"]) for row in found} == {("lat",)}
    # 3. One that names columns of its own is judged by what the table has when it is read.
    own = StructType([StructField("user", StringType())])
    assert {row["user"] for row in _read(FirnDataSource(options), own)} == {None, "u"}
    with pytest.raises(InvalidArgument, match="values=raw"):
        _read(FirnDataSource(options), StructType([StructField("value", BinaryType())]))


def test_without_the_http_listener_columns_are_refused_and_not_left_out(
    node: NodeProcess, tmp_path: Path
) -> None:
    """1. A reader that asks for columns, or has had them, gets an error: no listener.
    2. A reader without a choice gets records and a warning. 3. With the table's place it works."""
    topic = new_topic(node, "unasked")
    placed = options_of(node, topic, tmp_path)
    produce(node, topic, events(0, 1))
    sync_here(placed, schema_document=json.dumps(SCHEMA_1))
    away = {**options_of(node, topic), "admin": "127.0.0.1:1"}
    for values in ("typed", "dead_letters"):
        source = FirnDataSource({**away, "values": values})
        options = read_options({**away, "values": values}, is_stream=True)
        reader = FirnStreamReader(options, StructType([StructField("n", LongType())]))
        with pytest.warns(PlanWarning):
            end = reader.latestOffset()
        begin = {"shards": {}, "topic": end["topic"]}
        for question in (
            source.schema,
            reader.initialOffset,
            partial(reader.partitions, begin, end),
        ):
            told = pytest.raises(TableNotTold, match="option admin")
            with pytest.warns(PlanWarning), told:
                question()
    with pytest.warns(PlanWarning, match="its table only if catalog"):
        assert FirnDataSource(away).schema() == RECORD
    source = FirnDataSource({**placed, "admin": "127.0.0.1:1", "values": "typed"})
    with pytest.warns(PlanWarning):
        assert [row["n"] for row in _read(source, source.schema())] == [0]


def _read(source: FirnDataSource, columns: StructType) -> list[dict[str, Any]]:
    reader = source.reader(columns)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
