"""Typed tables: values as columns, the rest as dead letters, and every offset in one of the two."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from firnmq.errors import InvalidArgument
from firnmq.lake.jobs.runner import SparkRunner
from firnmq.lake.plans.places import make_plan
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.tables.catalogs.catalog import DEAD_LETTERS, TOPICS, OpenCatalog
from firnmq.lake.tables.table import find_table
from firnmq.lake.typed import SchemaConflict
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import NOON_MS, Sent, new_topic, options_of, produce, sync_here
from tests.integration.lake.syncs import Syncs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "name": {"type": "string"},
        "price": {"type": "string", "format": "decimal", "precision": 9, "scale": 2},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
    },
    "required": ["n"],
}
DOCUMENT = json.dumps(SCHEMA)
SMALL_COMMITS = {
    "commit_bytes": 2_500,
    "split_bytes": 2_500,
    "partition": "hour",
    "schema_document": DOCUMENT,
}


def events(count: int, *, start: int = 0, shards: int = 2) -> list[dict[str, Any]]:
    """Every seventh does not fit, every eleventh is a tombstone."""
    return [
        {
            "partition": number % shards,
            "key": f"key-{number}".encode(),
            "value": _value(number),
            "timestamp": NOON_MS + number * 60_000,
        }
        for number in range(start, start + count)
    ]


def _value(number: int) -> bytes | None:
    if number % 11 == 0:
        return None
    if number % 7 == 0:
        return b"not JSON %d" % number
    content = {"n": number, "price": f"{number}.50", "where": {"lat": number / 2}}
    return json.dumps(content).encode()


def tables(options: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the table and of the dead letters, in order."""
    plan = make_plan(options, Wanted(shards=()))
    assert plan.table is not None
    found = []
    with OpenCatalog(plan.table, options) as catalog:
        for namespace in (TOPICS, DEAD_LETTERS):
            table = find_table(catalog, plan.topic, plan.topic_id, namespace=namespace)
            rows = [] if table is None else table.iceberg.scan().to_arrow().to_pylist()
            found.append(sorted(rows, key=lambda row: (row["shard"], row["offset"])))
    return found[0], found[1]


def offsets(*tables: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["shard"], row["offset"]) for rows in tables for row in rows)


def assert_once(sent: list[Sent], options: Mapping[str, str]) -> None:
    """Every record is a row or a dead letter, where it belongs, once."""
    rows, dead = tables(options)
    assert offsets(rows, dead) == sorted((each.shard, each.offset) for each in sent)
    by_place = {(each.shard, each.offset): each for each in sent}
    for row in rows:
        value = by_place[row["shard"], row["offset"]].value
        expected = {} if value is None else json.loads(value)
        assert row["n"] == expected.get("n")
        assert str(row["price"]) == str(expected.get("price"))
        assert row["where"] == expected.get("where")
        assert row["key"] == by_place[row["shard"], row["offset"]].key
    for row in dead:
        assert row["value"] == by_place[row["shard"], row["offset"]].value
        assert row["value"].startswith(b"not JSON")
        assert "malformed" in row["reason"]


def test_every_record_is_a_row_or_a_dead_letter(node: NodeProcess, spark: SparkSession) -> None:
    topic = new_topic(node, "typed")
    options = options_of(node, topic)
    sent = produce(node, topic, events(300))
    done = sync_here(options, runner=SparkRunner(spark), schema_document=DOCUMENT)
    broken = [each for each in sent if each.value is not None and each.value.startswith(b"not")]
    assert (done.row_count, done.dead_letter_count) == (300 - len(broken), len(broken))
    assert_once(sent, options)
    assert sync_here(options, schema_document=DOCUMENT).rounds == 0


def test_columns_are_added_and_never_changed(node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node, "typed", shards=1)
    options = options_of(node, topic, tmp_path / "lake")
    # 1. The first schema.
    produce(node, topic, [{"value": b'{"n": 1, "where": {"lat": 1}, "new": "unseen"}'}])
    sync_here(options, schema_document=DOCUMENT)
    # 2. A newer one has more: a column at the top, one in a struct.
    newer = json.loads(DOCUMENT)
    newer["properties"]["new"] = {"type": "string"}
    newer["properties"]["where"]["properties"]["lon"] = {"type": "number"}
    produce(node, topic, [{"value": b'{"n": 2, "where": {"lon": 3}, "new": "seen"}'}])
    sync_here(options, schema_document=json.dumps(newer))
    rows, _ = tables(options)
    assert [(row["n"], row["where"], row["new"]) for row in rows] == [
        (1, {"lat": 1.0, "lon": None}, None),
        (2, {"lat": None, "lon": 3.0}, "seen"),
    ]
    # 3. One that has less, or something else, is refused before anything is converted.
    produce(node, topic, [{"value": b'{"n": 3}'}])
    newer["properties"]["new"] = {"type": "integer"}
    for document, column in ((DOCUMENT, None), (json.dumps(newer), "new")):
        with pytest.raises(SchemaConflict) as refused:
            sync_here(options, schema_document=document)
        assert column is None or refused.value.column == column
    assert len(tables(options)[0]) == 2
    # 4. A sync that is given no schema goes on by the table's.
    sync_here(options)
    rows, _ = tables(options)
    assert [(row["n"], row["new"]) for row in rows] == [(1, None), (2, "seen"), (3, None)]


def test_a_raw_table_does_not_become_typed(node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node, "typed", shards=1)
    options = options_of(node, topic, tmp_path / "lake")
    produce(node, topic, [{"value": b'{"n": 1}'}])
    sync_here(options)
    with pytest.raises(InvalidArgument, match="keeps its mode"):
        sync_here(options, schema_document=DOCUMENT)


def test_avro_by_the_numbers_of_its_writers(node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node, "typed", shards=1)
    options = options_of(node, topic, tmp_path / "lake")
    old = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "int"}]}
    new = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "s", "type": ["null", "string"], "default": None},
        ],
    }

    def encoded(schema: dict[str, Any], number: int, value: dict[str, Any]) -> dict[str, Any]:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
        return {"value": b"\x00" + number.to_bytes(4, "big") + target.getvalue()}

    produce(
        node,
        topic,
        [
            encoded(old, 1, {"n": 1}),
            encoded(new, 2, {"n": 2, "s": "x"}),
            encoded(new, 3, {"n": 3, "s": "x"}),
        ],
    )
    sync_here(
        options,
        schema_document=json.dumps(new),
        schema_kind="avro-confluent",
        schema_writers={1: json.dumps(old), 2: json.dumps(new)},
    )
    rows, dead = tables(options)
    assert [(row["n"], row["s"]) for row in rows] == [(1, None), (2, "x")]
    assert [row["reason"] for row in dead] == [
        "is written with schema number 3, which was not given"
    ]


CRASHES = [
    *((step, count) for step in ("all converted", "committed") for count in (1, 2, 3)),
    *(("metadata written", count) for count in (1, 2)),
    *(("catalog written, not committed", count) for count in (2, 3)),
    ("not told", 1),
]
"""Each round commits to the dead letters and then to the table, so a second time is between."""


def test_killed_between_its_two_commits_it_repeats_nothing(
    node: NodeProcess, syncs: Syncs, tmp_path: Path
) -> None:
    """1. One process after the other is killed, each at another step, while records arrive. 2. One
    more runs to its end. 3. Every record is in one of the two tables, once."""
    topic = new_topic(node, "typed", segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent, killed = [], 0
    for step, count in CRASHES:
        sent += produce(node, topic, events(120, start=len(sent)))
        number = syncs.start(options, SMALL_COMMITS, step, count)
        killed += syncs.ended(number) == -signal.SIGKILL
        rows, dead = tables(options)
        found = offsets(rows, dead)
        assert len(set(found)) == len(found)
    assert killed == len(CRASHES), "steps that are never come by are not tested"
    # A crash while another sync's promise is being kept.
    sent += produce(node, topic, events(120, start=len(sent)))
    for step in ("committed", "pending finished"):
        assert syncs.ended(syncs.start(options, SMALL_COMMITS, step)) == -signal.SIGKILL
    sync_here(options, **SMALL_COMMITS)
    assert_once(sent, options)


def test_two_at_once_fill_both_tables_once(node: NodeProcess, syncs: Syncs, tmp_path: Path) -> None:
    topic = new_topic(node, "typed", segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent = produce(node, topic, events(300))
    several = [syncs.start(options, SMALL_COMMITS) for _ in range(3)]
    sent += produce(node, topic, events(100, start=300))
    assert [syncs.ended(number) for number in several] == [0, 0, 0]
    sync_here(options, **SMALL_COMMITS)
    assert_once(sent, options)
