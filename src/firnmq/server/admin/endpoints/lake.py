"""The lake over HTTP: plans of what to read, and how far the tables are."""

from __future__ import annotations

from firnmq.adapter import Topic
from firnmq.disk import call_blocking
from firnmq.engines.api import ReadEngine
from firnmq.errors import InvalidArgument, StorageTypeNotFound
from firnmq.lake.plans.plan import Plan, StorePlace, TablePlace, Wanted
from firnmq.lake.plans.planning import plan_topic, retired_number, table_name
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import LakeProgress
from firnmq.server.identity import directory_id
from firnmq.tiering.archive.ownership import known_cluster


class LakeAdmin:
    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._local = parts.local

    async def plan(self, name: str, wanted: Wanted) -> Plan:
        """Runs in a thread, since it may fetch indexes from the object store."""
        topic = self._topic(name)
        address = self._parts.broker.address

        def make() -> Plan:
            return plan_topic(
                topic,
                self._engine(topic),
                wanted,
                cluster=self._cluster(),
                leader=f"{address.host}:{address.port}",
                made_ms=self._local.clock.now_ms(),
                store=self._store(),
                table=self._table(topic),
                directory=directory_id(self._local.meta),
            )

        return await call_blocking(None, make)

    async def progress(self, name: str) -> LakeProgress:
        topic = self._topic(name)
        return await call_blocking(None, self._progress, topic, {}, {})

    async def move(self, name: str, wanted: LakeProgress) -> LakeProgress:
        """Records the table's end, which never moves back, and the deletions it has applied."""
        topic = self._topic(name)
        if wanted.topic_id != topic.topic_id:
            raise InvalidArgument(
                "topic_id", f"is another topic's: {name!r} has the id {topic.topic_id}"
            )
        for shard in wanted.ends:
            self._local.manager.check_shard(topic, shard)
        directory = directory_id(self._local.meta)
        applied = {shard: retired_number(text, directory) for shard, text in wanted.applied.items()}
        for shard in applied.keys() - wanted.ends.keys():
            raise InvalidArgument(f"applied.{shard}", "needs the end below which they are applied")
        return await call_blocking(None, self._progress, topic, wanted.ends, applied)

    def _progress(
        self, topic: Topic, ends: dict[int, int], applied: dict[int, int]
    ) -> LakeProgress:
        engine, shards = self._engine(topic), self._local.shards
        retired = self._local.state.retired_deletions
        found: dict[int, int] = {}
        counts: dict[int, int] = {}
        for shard in range(topic.shard_count):
            status = engine.status(topic.shard_name(shard))
            uid, end = status.spec.uid, ends.get(shard)
            if end is None:
                found[shard] = shards.lake_end(uid)
            elif not 0 <= end <= status.stable_offset:
                raise InvalidArgument(
                    f"ends.{shard}", f"{end:,} is beyond the shard's end {status.stable_offset:,}"
                )
            else:
                found[shard] = shards.move_lake_end(uid, end)
                retired.drop(uid, applied.get(shard, 0), end)
            if count := retired.count(uid):
                counts[shard] = count
        return LakeProgress(topic_id=topic.topic_id, ends=found, retired_counts=counts)

    def _topic(self, name: str) -> Topic:
        topic = self._local.catalog.get(name)
        if self._local.member is not None:
            text = "its node is one of a cluster, and knows the segments of its own shards only"
            raise InvalidArgument(name, text)
        return topic

    def _engine(self, topic: Topic) -> ReadEngine:
        engine = self._local.engines.get(topic.config.storage_type)
        if engine is None:
            raise StorageTypeNotFound(topic.config.storage_type, within="the engines with segments")
        return engine

    def _cluster(self) -> str:
        meta = self._local.meta
        return known_cluster(meta) or directory_id(meta)

    def _store(self) -> StorePlace | None:
        config = self._parts.config.tiering
        if config.url is None:
            return None
        return StorePlace(
            url=config.url,
            endpoint=config.endpoint,
            region=config.region,
            allow_http=config.allow_http,
        )

    def _table(self, topic: Topic) -> TablePlace:
        config, path = self._parts.config.lake, self._local.path
        return TablePlace(
            catalog=config.catalog_in(path),
            warehouse=config.warehouse_in(path),
            name=table_name(topic.name),
        )
