"""A node with a topic, records by a real Kafka client, and what a table has of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from firnmq.lake.jobs.convert import Conversion, Task, convert
from firnmq.lake.jobs.sync import SyncDone, SyncSettings, TopicSync
from firnmq.lake.plans.places import make_plan
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.plans.source import OptionsSource
from firnmq.lake.tables.catalogs.catalog import OpenCatalog
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten, rewrite
from firnmq.lake.tables.table import TopicTable, find_table
from tests.integration.kafka.nodes import NodeProcess

NOON_MS = 1_767_268_800_000
"""2026-01-01 12:00 UTC."""

_numbers = itertools.count()


class Sent(NamedTuple):
    """A record as it was produced."""

    shard: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def row(self) -> tuple[Any, ...]:
        """As a row of the table: the default header of tags is `tag`."""
        tags = tuple(value.decode() for name, value in self.headers if name == "tag" and value)
        return (*self, tags)


def new_topic(node: NodeProcess, name: str = "lake", shards: int = 2, **config: object) -> str:
    topic = f"{name}.{next(_numbers)}"
    options = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": node.address})
    wanted = NewTopic(topic, num_partitions=shards, replication_factor=1, config=options)
    admin.create_topics([wanted])[topic].result(60)
    return topic


def produce(
    node: NodeProcess, topic: str, records: Iterable[Mapping[str, Any]], **settings: object
) -> list[Sent]:
    """Sends records (`partition`, `key`, `value`, `timestamp`, `headers`) and says what was
    acknowledged."""
    sent: list[Sent] = []
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": node.address, "linger.ms": 5, **settings})

    def noted(record: Mapping[str, Any]) -> Any:
        def deliver(error: object, message: Any) -> None:
            if error is not None:
                failures.append(error)
                return
            sent.append(
                Sent(
                    shard=message.partition(),
                    offset=message.offset(),
                    timestamp_ms=message.timestamp()[1],
                    key=record.get("key"),
                    value=record.get("value"),
                    headers=tuple(record.get("headers", ())),
                )
            )

        return deliver

    for record in records:
        producer.produce(topic, on_delivery=noted(record), **record)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures
    return sorted(sent)


def numbered(
    count: int, *, start: int = 0, shards: int = 2, step_ms: int = 60_000, value_bytes: int = 40
) -> list[dict[str, Any]]:
    """Plain records over some hours, to all shards in turn."""
    return [
        {
            "partition": number % shards,
            "key": f"key-{number}".encode(),
            "value": f"value {number} ".encode().ljust(value_bytes, b"."),
            "timestamp": NOON_MS + number * step_ms,
        }
        for number in range(start, start + count)
    ]


class InlineRunner:
    """Runs tasks here, where a test is not about Spark."""

    def run(self, tasks: Sequence[Task]) -> list[Conversion]:
        return [convert(task) for task in tasks]

    def rewrite(self, work: Sequence[Rewrite]) -> list[Rewritten]:
        return [rewrite(each) for each in work]


def options_of(node: NodeProcess, topic: str, lake: Path | None = None) -> dict[str, str]:
    options = {"bootstrap": node.address, "topic": topic}
    if lake is not None:
        options |= {"catalog": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}/files"}
    return options


def sync_here(options: Mapping[str, str], runner: Any = None, **settings: Any) -> SyncDone:
    work = TopicSync(
        source=OptionsSource(options),
        runner=runner or InlineRunner(),
        options=options,
        settings=SyncSettings(**settings),
    )
    try:
        return work.run()
    finally:
        work.close()


def open_table(options: Mapping[str, str]) -> tuple[OpenCatalog, TopicTable]:
    """The topic's table, and the catalog, which the caller closes."""
    plan = make_plan(options, Wanted(shards=()))
    assert plan.table is not None
    catalog = OpenCatalog(plan.table, options)
    table = find_table(catalog, plan.topic, plan.topic_id)
    assert table is not None
    return catalog, table


def rows_of(options: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """The table's rows as PyIceberg reads them, in order."""
    catalog, table = open_table(options)
    with catalog:
        return as_rows(table.iceberg.scan().to_arrow().to_pylist())


def files_of(options: Mapping[str, str]) -> list[str]:
    """Paths of the files of the newest snapshot."""
    catalog, table = open_table(options)
    with catalog:
        tasks = table.iceberg.scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]


def as_rows(found: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            row["shard"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            _bytes(row["key"]),
            _bytes(row["value"]),
            tuple((header["key"], _bytes(header["value"])) for header in row["headers"]),
            tuple(row["tags"]),
        )
        for row in found
    )


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
