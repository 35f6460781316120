"""Where a topic's records are: on the node, in the object store, in the table."""

from __future__ import annotations

from typing import Final

from firnmq.adapter import Topic
from firnmq.disk import call_blocking
from firnmq.engines import ShardStatus
from firnmq.errors import FirnError, InvalidArgument
from firnmq.meta.records import (
    SegmentRecord,
    ShardRecord,
    decode,
    segment_key,
    shard_key,
)
from firnmq.server.admin.console.documents import PlaceRun, ShardPlaces, TopicPlaces
from firnmq.server.admin.endpoint import Call
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import Segment, segments_of

PLACES: Final = ("active", "sealed", "both", "store")
_SHARDS: Final = 50
_SHARDS_MAX: Final = 200
_RUNS_MAX: Final = 200


class PlaceViews:
    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._local = parts.local

    async def topic(self, call: Call) -> TopicPlaces:
        topic = self._parts.storage.topic(call.path["topic"])
        start, count = call.number("start") or 0, call.number("max") or _SHARDS
        if start < 0 or not 1 <= count <= _SHARDS_MAX:
            raise InvalidArgument("max", f"must be 1 to {_SHARDS_MAX}, and start not below 0")
        shards = []
        for seq in range(start, min(start + count, topic.shard_count)):
            shards.append(await self._shard(topic, seq))
        return TopicPlaces(topic=topic.name, shard_count=topic.shard_count, shards=shards)

    async def _shard(self, topic: Topic, seq: int) -> ShardPlaces:
        leader, replicas, in_sync = self._nodes(topic.shard_name(seq))
        manager = self._local.manager
        logs = manager.driver_of(topic.name).logs
        try:
            if logs is None:
                start, end = await manager.bounds(topic, seq)
                return ShardPlaces(shard=seq, start_offset=start, end_offset=end)
            status = await logs.status(topic.shard_name(seq))
        except FirnError as error:
            return ShardPlaces(
                shard=seq, failure=str(error), leader=leader, replicas=replicas, in_sync=in_sync
            )
        return ShardPlaces(
            shard=seq,
            start_offset=status.start_offset,
            end_offset=status.end_offset,
            length_bytes=status.length_bytes,
            store_only_bytes=sum(each.length for each in status.segments if not each.is_local),
            segment_count=len(status.segments),
            failure=status.failure,
            table_end=self._table_end(status.spec.uid),
            leader=leader,
            replicas=replicas,
            in_sync=in_sync,
            runs=await call_blocking(None, _runs, topic.name, seq, status),
        )

    def _nodes(self, shard: str) -> tuple[int | None, list[int], list[int]]:
        """Leader, replicas and those in sync, as the metadata has them; nothing for one node."""
        cache = self._local.cache
        entry = None if self._local.member is None else cache.get(shard_key(shard))
        if entry is None:
            return None, [], []
        record = decode(entry, ShardRecord)
        active = cache.get(segment_key(shard, record.active))
        if active is None:
            return record.leader, [], []
        segment = decode(active, SegmentRecord)
        return record.leader, list(segment.replicas), [each.node for each in segment.isr]

    def _table_end(self, uid: int) -> int | None:
        end = self._local.shards.lake_end(uid)
        return end or None


def place_of(segment: Segment) -> str:
    """Where the segment's bytes are."""
    if segment.state == "active":
        return "active"
    if not segment.is_local:
        return "store"
    return "both" if segment.state == "tiered" else "sealed"


def _runs(topic: str, seq: int, status: ShardStatus) -> list[PlaceRun]:
    runs: list[PlaceRun] = []
    for segment in segments_of(topic, seq, status):
        place = place_of(segment)
        if runs and (runs[-1].place == place or len(runs) >= _RUNS_MAX) and place != "active":
            last = runs.pop()
            runs.append(
                PlaceRun(
                    place=place if last.place == place else "mixed",
                    segment_count=last.segment_count + 1,
                    length_bytes=last.length_bytes + segment.length_bytes,
                    base_offset=last.base_offset,
                    end_offset=segment.end_offset,
                )
            )
            continue
        runs.append(
            PlaceRun(
                place=place,
                segment_count=1,
                length_bytes=segment.length_bytes,
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
            )
        )
    return runs
