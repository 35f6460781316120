"""What the metadata say about replicated segments, as this node's cache knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from firnmq.cluster.replication.driving.records import is_replicated, replicated
from firnmq.cluster.replication.values import (
    Durability,
    RecordState,
    ReplicatedSegment,
    ReplicationConfig,
    SegmentId,
)
from firnmq.config import TopicConfig
from firnmq.engines import ShardSpec
from firnmq.engines.catalog.segments import SegmentState
from firnmq.ids import SegmentSeq, ShardUid
from firnmq.meta import Event, MetaCache
from firnmq.meta.records import (
    SEGMENTS,
    SegmentRecord,
    ShardRecord,
    decode,
    segment_key,
    segment_seq_of,
    segments_prefix,
    shard_of_segment,
)

_OPENED = b"opened"
"""Only the record of a segment with replicas contains this field name."""
_DURABILITIES = {
    "os": Durability.OS,
    "interval": Durability.OS,
    "fsync": Durability.FSYNC,
}


class ReplicationKnowledge:
    """Safe with threads: changed by the cache's thread alone, by single operations."""

    def __init__(
        self,
        cache: MetaCache,
        config_of: Callable[[str], TopicConfig | None],
        session_ttl_ms: int,
    ) -> None:
        """`config_of`: a topic's options by its id."""
        self._cache = cache
        self._config_of = config_of
        self._session_ttl_ms = session_ttl_ms
        self._shards: dict[int, ShardRecord] = {}
        self._uids: dict[str, int] = {}
        self._unsealed: dict[SegmentId, SegmentRecord] = {}
        """Those of all nodes."""
        self._configs: dict[tuple[int, Durability], ReplicationConfig] = {}

    # Following ----------------------------------------------------------------------------------

    def follow_shards(self, events: Iterable[Event]) -> list[int]:
        """Takes changes of shards; returns the numbers of those that are gone."""
        gone = []
        for event in events:
            name = event.key.partition("/")[2]
            record = None if event.entry is None else decode(event.entry, ShardRecord)
            known = self._uids.get(name)
            if known is not None and (record is None or record.uid != known):
                gone.append(known)
                del self._uids[name]
                self._shards.pop(known, None)
            if record is not None:
                self._shards[record.uid] = record
                self._uids[name] = record.uid
        return gone

    def follow_segments(
        self, events: Iterable[Event]
    ) -> list[tuple[SegmentId, SegmentRecord | None]]:
        """Takes changes of segments; returns those with replicas, None for one that is deleted."""
        seen: list[tuple[SegmentId, SegmentRecord | None]] = []
        for event in events:
            uid = self._uids.get(shard_of_segment(event.key))
            if uid is None:
                continue
            segment = SegmentId(ShardUid(uid), SegmentSeq(segment_seq_of(event.key)))
            if event.entry is None:
                if self._unsealed.pop(segment, None) is not None:
                    seen.append((segment, None))
                continue
            if _OPENED not in event.entry.value:
                continue
            record = decode(event.entry, SegmentRecord)
            if not is_replicated(record):
                continue
            if record.state in (SegmentState.ACTIVE, SegmentState.FENCING):
                self._unsealed[segment] = record
            else:
                self._unsealed.pop(segment, None)
            seen.append((segment, None if record.state is SegmentState.DELETED else record))
        return seen

    def forgotten(self, uids: Iterable[int]) -> list[SegmentId]:
        """Drops the segments of shards that are gone, and returns them."""
        lost = set(uids)
        found = [segment for segment in list(self._unsealed) if segment.shard in lost]
        for segment in found:
            self._unsealed.pop(segment, None)
        return found

    # Asking -------------------------------------------------------------------------------------

    def name_of(self, uid: int) -> str | None:
        record = self._shards.get(uid)
        return None if record is None else record.name

    def shard(self, uid: int) -> ShardRecord | None:
        return self._shards.get(uid)

    def unsealed(self) -> list[ReplicatedSegment]:
        """Every segment of the cluster with several replicas that is not sealed."""
        found = (
            replicated(segment.shard, segment.seq, record)
            for segment, record in list(self._unsealed.items())
        )
        return [each for each in found if each is not None]

    def core_record(self, segment: SegmentId, record: SegmentRecord) -> ReplicatedSegment | None:
        return replicated(segment.shard, segment.seq, record)

    def record(self, segment: SegmentId) -> SegmentRecord | None:
        """The record in the cache."""
        name = self.name_of(segment.shard)
        entry = None if name is None else self._cache.get(segment_key(name, segment.seq))
        return None if entry is None else decode(entry, SegmentRecord)

    def chain(self, uid: int) -> dict[int, SegmentRecord]:
        """All segments of a shard in the cache, in order."""
        name = self.name_of(uid)
        if name is None:
            return {}
        entries = self._cache.below(segments_prefix(name))
        assert all(entry.key.startswith(SEGMENTS) for entry in entries)
        return {segment_seq_of(entry.key): decode(entry, SegmentRecord) for entry in entries}

    def next_of(self, segment: SegmentId) -> SegmentId:
        return SegmentId(segment.shard, SegmentSeq(segment.seq + 1))

    def spec(self, uid: int, leader_epoch: int) -> ShardSpec | None:
        """What an engine opens; None if the shard or its topic is gone."""
        shard = self._shards.get(uid)
        config = None if shard is None else self._config_of(shard.topic_id or "")
        if shard is None or config is None:
            return None
        return ShardSpec(name=shard.name, uid=uid, config=config, epoch=leader_epoch)

    def topic_config(self, segment: SegmentId) -> TopicConfig:
        """The options of the segment's topic; the defaults if it is gone."""
        shard = self._shards.get(segment.shard)
        config = None if shard is None else self._config_of(shard.topic_id or "")
        return config or TopicConfig()

    def config(self, segment: SegmentId) -> ReplicationConfig:
        """What the core needs of the options."""
        options = self.topic_config(segment)
        durability = _DURABILITIES[options.durability.value]
        key = options.min_insync_replicas, durability
        found = self._configs.get(key)
        if found is None:
            found = self._configs[key] = ReplicationConfig(
                min_in_sync=options.min_insync_replicas,
                durability=durability,
                session_ttl_ms=self._session_ttl_ms,
                # A follower that was killed holds appends up no longer than a leader.
                replica_lag_max_ms=self._session_ttl_ms,
            )
        return found

    def is_sealed(self, record: ReplicatedSegment) -> bool:
        return record.state is RecordState.SEALED
