"""Plans from an object store alone, when no node is running: by the manifests of what is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from firnmq.config import TopicConfig
from firnmq.disk.files import Buffer
from firnmq.engines.api import Survey, SurveyedSegment
from firnmq.engines.catalog.state import ShardSpec
from firnmq.errors import InvalidArgument, TopicNotFound
from firnmq.lake.plans.plan import Plan, TablePlace, Wanted, is_rest
from firnmq.lake.plans.planning import begin_plan, finish_plan, table_name
from firnmq.lake.plans.stores import open_store_at, store_place
from firnmq.tiering.archive.recover import FoundShard, FoundTopic, choose_cluster, find_cluster
from firnmq.tiering.cold.index import ColdIndex, IndexHeads
from firnmq.tiering.format.manifest import SegmentManifest
from firnmq.tiering.format.object_names import INDEX
from firnmq.tiering.stores import ObjectStore

_HEADS_BYTES: Final = 64 * 1024 * 1024


def bucket_plan(options: Mapping[str, str], wanted: Wanted) -> Plan:
    """What of the topic is in the store. No node serves the rest: the plan names no leader."""
    topic = options.get("topic")
    if not topic:
        raise InvalidArgument("topic", "is missing")
    place = store_place(options)
    store = open_store_at(place, options)
    try:
        cluster = choose_cluster(store, options.get("cluster"))
        skips = options.get("store.skip_gaps", "false").lower() == "true"
        found = find_cluster(store, cluster, skip_gaps=skips, topic=topic)
        if not found.topics:
            raise TopicNotFound(topic, within=f"cluster {cluster!r} of {place.url}")
        return _plan(cluster, found.topics[0], wanted, store, options)
    finally:
        store.close()


def _plan(
    cluster: str,
    topic: FoundTopic,
    wanted: Wanted,
    store: ObjectStore,
    options: Mapping[str, str],
) -> Plan:
    manifest = topic.manifest
    config = TopicConfig.from_options(manifest.options)
    heads = IndexHeads(_HEADS_BYTES)
    return Plan(
        cluster=cluster,
        topic=manifest.topic,
        topic_id=manifest.topic_id,
        made_ms=time.time_ns() // 1_000_000,
        options=manifest.options,
        store=store_place(options),
        table=_table(options, manifest.topic),
        shards=tuple(
            finish_plan(begin_plan(number, _survey(shard, config, store, heads), wanted), None)
            for number, shard in enumerate(topic.shards)
            if wanted.shards is None or number in wanted.shards
        ),
    )


def _survey(
    shard: FoundShard, config: TopicConfig, store: ObjectStore, heads: IndexHeads
) -> Survey:
    open_offsets = [each.first_offset for each in shard.open_transactions]
    stable = max(min(open_offsets, default=shard.end_offset), shard.start_offset)
    return Survey(
        spec=ShardSpec(name=shard.name, uid=0, config=config, epoch=shard.epoch),
        start_offset=shard.start_offset,
        end_offset=shard.end_offset,
        stable_offset=stable,
        segments=tuple(
            SurveyedSegment(
                meta := each.meta(),
                each.end_offset,
                each.length,
                None,
                ColdIndex(_IndexObject(store, each), meta, heads),
            )
            for each in shard.segments
        ),
        holes=frozenset(shard.holes),
        dead_keys=dict(shard.dead_keys),
        aborted=tuple(shard.aborted),
    )


class _IndexObject:
    """An .idx object, read from the store every time; an IndexSource."""

    def __init__(self, store: ObjectStore, manifest: SegmentManifest) -> None:
        self._store = store
        self._key = manifest.key + INDEX
        self.length = manifest.index_length
        self.head_length = manifest.index_head_length

    @property
    def where(self) -> str:
        return f"{self._store.url}/{self._key}"

    def read(self, position: int, size: int) -> Buffer:
        return self._store.get_range(self._key, position, size)

    def distrust(self) -> None:
        """Nothing is kept."""


def _table(options: Mapping[str, str], topic: str) -> TablePlace | None:
    catalog, warehouse = options.get("catalog"), options.get("warehouse")
    if catalog is None or (warehouse is None and not is_rest(catalog)):
        return None
    return TablePlace(catalog=catalog, warehouse=warehouse or "", name=table_name(topic))
