"""Topics whose plans are made and read without a node, and what they should give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from firnmq.adapter import Topic
from firnmq.config import TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines import Engine
from firnmq.lake.plans.plan import Plan, Split, StorePlace, Wanted
from firnmq.lake.plans.planning import plan_topic
from firnmq.lake.plans.splits import TARGET_BYTES, split_plan
from firnmq.lake.reading.reader import read_split
from firnmq.lake.reading.rows import schema_of
from firnmq.record import Record
from tests.conformance.lab import Lab, Shard


class LakeTopic:
    """A topic of one shard or more, and the readers of its plan."""

    def __init__(
        self, lab: Lab, options: Mapping[str, object] | None = None, *, shards: int = 1
    ) -> None:
        self.lab = lab
        name = f"topic.{len(lab.store.catalog.topics())}"
        config = TopicConfig.from_options({"storage.type": lab.storage_type, **(options or {})})
        self.topic: Topic = run_blocking(lab.store.manager.create_topic(name, shards, config))
        self.shards = [Shard(lab, each) for each in self.topic.shard_names()]

    @property
    def shard(self) -> Shard:
        return self.shards[0]

    @property
    def engine(self) -> Engine:
        return self.lab.engine

    def plan(self, wanted: Wanted | None = None, store: Path | None = None) -> Plan:
        """As a driver gets it: by way of JSON."""
        plan = plan_topic(
            self.topic,
            self.engine,
            wanted or Wanted(),
            cluster="lab",
            leader=None,
            made_ms=self.lab.clock.now_ms(),
            store=None if store is None else StorePlace(url=f"file://{store}"),
        )
        return msgspec.json.decode(msgspec.json.encode(plan), type=Plan)

    def read(
        self,
        wanted: Wanted | None = None,
        columns: Sequence[str] | None = None,
        *,
        plan: Plan | None = None,
        target_bytes: int = TARGET_BYTES,
        store: Path | None = None,
    ) -> pa.Table:
        plan = plan or self.plan(wanted, store)
        return read_all(split_plan(plan, wanted, target_bytes), wanted, columns)

    def stored(self) -> list[dict[str, Any]]:
        """The rows there should be, as the engine reads them."""
        return [
            row_of(number, record)
            for number, shard in enumerate(self.shards)
            for record in shard.records()
        ]


def read_all(
    splits: Sequence[Split], wanted: Wanted | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    schema = schema_of(columns)
    batches = [batch for split in splits for batch in read_split(split, wanted, columns)]
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows > 0
        assert batch.schema.equals(schema)
    return pa.Table.from_batches(batches, schema)


def row_of(shard: int, record: Record) -> dict[str, Any]:
    return {
        "shard": shard,
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000,
        "key": record.key,
        "value": record.value,
        "headers": [{"key": key, "value": value} for key, value in record.headers],
        "tags": list(record.tags),
    }


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """A table's rows, timestamps as microseconds."""
    if "timestamp" in table.schema.names:
        at = table.schema.names.index("timestamp")
        table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def offsets(table: pa.Table) -> list[int]:
    return list(table.column("offset").to_pylist())
