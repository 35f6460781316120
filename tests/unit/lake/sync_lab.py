"""Syncs of topics of this process, as a node and Spark would run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from firnmq.lake.convert import Conversion, Task, convert
from firnmq.lake.plan import Plan, TablePlace, Wanted
from firnmq.lake.planning import retired_number
from firnmq.lake.rewrite import Rewrite, Rewritten, rewrite
from tests.unit.lake.lake_lab import LakeTopic


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
