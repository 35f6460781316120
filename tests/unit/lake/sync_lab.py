"""Syncs of topics of this process, as a node and Spark would run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from firnmq.lake.jobs.convert import Conversion, Task, convert
from firnmq.lake.jobs.sync import TopicSync
from firnmq.lake.plans.plan import Plan, TablePlace, Wanted
from firnmq.lake.plans.planning import retired_number
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten, rewrite
from firnmq.lake.tables.files.rows import read_history
from firnmq.lake.tables.history import plan_history
from firnmq.record import NewRecord
from tests.unit.lake.lake_lab import LakeTopic, read_all
from tests.unit.lake.rows import content


class LabSource:
    """Plans of a topic of this process, as a node would give them; a Source."""

    def __init__(self, topic: LakeTopic, path: Path) -> None:
        self.topic = topic
        self.topic_id: str | None = None
        self.told: list[tuple[str, dict[int, int]]] = []
        self.applied: list[dict[int, str]] = []
        self._table = TablePlace(
            catalog=f"sqlite:///{path}/lake/catalog.db",
            warehouse=f"file://{path}/lake/warehouse",
            name="topics.any",
        )

    def plan(self, wanted: Wanted) -> Plan:
        plan = self.topic.plan(wanted)
        return msgspec.structs.replace(
            plan,
            topic="any",
            topic_id=self.topic_id or plan.topic_id,
            table=self._table,
            shards=tuple(
                msgspec.structs.replace(shard, leader="127.0.0.1:1") for shard in plan.shards
            ),
        )

    def report(
        self, topic_id: str, ends: Mapping[int, int], applied: Mapping[int, str] | None = None
    ) -> None:
        """As the node's HTTP listener notes it."""
        self.told.append((topic_id, dict(ends)))
        self.applied.append(dict(applied or {}))
        store, topic = self.topic.lab.store, self.topic.topic
        for shard, end in ends.items():
            uid = self.topic.engine.status(topic.shard_name(shard)).spec.uid
            store.shards.move_lake_end(uid, end)
            number = retired_number((applied or {}).get(shard, ":0"), "")
            store.state.retired_deletions.drop(uid, number, end)


class HereRunner:
    def run(self, tasks: Sequence[Task]) -> list[Conversion]:
        return [convert(task) for task in tasks]

    def rewrite(self, work: Sequence[Rewrite]) -> list[Rewritten]:
        return [rewrite(each) for each in work]


def write(source: LabSource, count: int) -> None:
    """Ten to a segment, with the keys k0 to k4 in turn."""
    shard = source.topic.shard
    for number in range(shard.end, shard.end + count):
        value = b'{"n": %d}' % number if number % 2 else b"no JSON"
        shard.append(NewRecord(key=b"k%d" % (number % 5), value=value))
        if number % 10 == 9:
            shard.roll()


def offsets(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def in_table(sync: TopicSync) -> list[int]:
    return offsets(content(sync.table))


def seen(source: LabSource) -> list[int]:
    """What the data source shows: the table, and the log from there on."""
    plan = source.plan(Wanted())
    history = plan_history(plan, Wanted(), {}, 2**30)
    rows = [
        offset
        for split in history.splits
        for batch in read_history(split, Wanted(), ["offset"], {})
        for offset in batch.column("offset").to_pylist()
    ]
    wanted = Wanted(start_offsets=history.ends)
    return rows + read_all(split_plan(plan, wanted), wanted).column("offset").to_pylist()


def kept_count(source: LabSource) -> int:
    lab, topic = source.topic.lab, source.topic
    return lab.store.state.retired_deletions.count(topic.shard.status.spec.uid)


def without(count: int, *gone: int) -> list[int]:
    return [offset for offset in range(count) if offset not in gone]
