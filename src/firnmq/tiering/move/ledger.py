"""Segments and their copies, kept up to date from the metadata cache's events.

Scanning every segment of every shard each second would cost more than moving them. Instead the
ledger listens to the node's metadata cache. It keeps for each sealed segment the fields that decide
whether to upload it, drop its local copy or remove its objects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from firnmq.config import StorageType, TopicConfig
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.errors import Corruption
from firnmq.eventlog import EventLogger
from firnmq.meta import Event, MetaCache
from firnmq.meta.records import (
    SEGMENTS,
    SHARDS,
    TIER_GRAVES,
    TOPICS,
    GraveRecord,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    decode,
)
from firnmq.tiering.format.object_names import parse
from firnmq.tiering.move.share import Share, Whole

_log = EventLogger("tiering")


class SegmentId(NamedTuple):
    """Names a segment among all shards."""

    shard: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredTopic:
    """A topic with its tiering options."""

    record: TopicRecord
    config: TopicConfig
    is_ready: bool


class Totals(NamedTuple):
    """Segments and bytes by location."""

    waiting_segments: int
    waiting_bytes: int
    tiered_segments: int
    tiered_bytes: int
    local_segments: int
    """Tiered segments that nodes still have as well."""
    local_bytes: int


NOTHING = Totals(0, 0, 0, 0, 0, 0)


class TierLedger:
    """Safe with threads. After the initial fill only the metadata cache's thread changes it.

    It follows all shards. What it is asked about segments is about those of this node's share.
    """

    def __init__(self, cache: MetaCache, share: Share | None = None) -> None:
        self.share = share or Whole()
        self.on_change: Callable[[], None] = lambda: None
        """Called in the cache's thread after every change to topics, segments or graves."""
        self.on_gained: Callable[[], None] = lambda: None
        """Called in the cache's thread when the node has come to lead a shard."""
        self._lock = threading.Lock()
        self._topics: dict[str, TieredTopic] = {}
        """By id."""
        self._ids: dict[str, str] = {}
        """Topic ids by name."""
        self._tiered_ids: set[str] = set()
        """Ids of topics with tiering."""
        self._shards: dict[str, ShardRecord] = {}
        self._sealed: dict[str, dict[SegmentId, SegmentRecord]] = {}
        """By topic id: segments without a finished copy, whether their topic is tiered or not."""
        self._begun: set[SegmentId] = set()
        """Those of them whose copy was begun."""
        self._tiered: dict[SegmentId, SegmentRecord] = {}
        self._dead: dict[SegmentId, SegmentRecord] = {}
        """Deleted segments that may still have objects."""
        self._graves: dict[str, GraveRecord] = {}
        for prefix, follow in (
            (TOPICS, self._follow_topics),
            (SHARDS, self._follow_shards),
            (SEGMENTS, self._follow_segments),
            (TIER_GRAVES, self._follow_graves),
        ):
            cache.listen(prefix, follow)

    # Asking -------------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether there is a tiered topic, or anything in the store. Constant time."""
        stored = self._begun or self._tiered or self._dead or self._graves
        return bool(self._tiered_ids or stored)

    def topics(self) -> list[TieredTopic]:
        """Topics that are ready and may have objects: tiered now, or with copies from before."""
        with self._lock:
            copied = {_topic_id(at) for at in self._tiered}
            return [
                topic
                for topic_id, topic in self._topics.items()
                if topic.is_ready and (topic.config.is_tiered or topic_id in copied)
            ]

    def has_topic(self, topic_id: str) -> bool:
        """Whether there is a topic with this id, in any state."""
        return topic_id in self._topics

    def topic_of(self, shard: str) -> TieredTopic | None:
        return self._topics.get(shard.rpartition("_")[0])

    def topic_name(self, shard: str) -> str:
        """What users call a shard's topic; nothing if there is none."""
        topic = self.topic_of(shard)
        return "" if topic is None else topic.record.name

    def shard(self, name: str) -> ShardRecord | None:
        return self._shards.get(name)

    def knows(self, at: SegmentId) -> bool:
        """Whether the segment is sealed or tiered."""
        return at in self._tiered or at in self._sealed.get(_topic_id(at), ())

    def waiting(self) -> list[tuple[SegmentId, SegmentRecord]]:
        """Sealed segments of tiered topics without a finished copy, oldest first. Segments of one
        shard keep their order, even if the clock was set back between them."""
        with self._lock:
            found = sorted(self._waiting(), key=lambda each: each[0])
        ages: dict[SegmentId, int] = {}
        latest: dict[str, int] = {}
        for at, record in found:
            latest[at.shard] = ages[at] = max(record.sealed_ms, latest.get(at.shard, -1))
        return sorted(found, key=lambda each: (ages[each[0]], each[0]))

    def waiting_before(self, at: SegmentId) -> list[SegmentId]:
        """Older waiting segments of the same shard."""
        topic_id = _topic_id(at)
        with self._lock:
            return sorted(
                other
                for other, record in self._sealed.get(topic_id, {}).items()
                if other.shard == at.shard
                and other.seq < at.seq
                and self._is_to_upload(topic_id, record)
            )

    def waiting_bytes(self) -> int:
        """Bytes of the waiting segments."""
        with self._lock:
            return sum(record.length for _, record in self._waiting())

    def has(self, shard: str) -> bool:
        """Whether the shard is in this node's share."""
        record = self._shards.get(shard)
        return self.share.is_whole or (record is not None and self.share.has(record))

    def unwanted(self) -> list[tuple[SegmentId, SegmentRecord]]:
        """Unfinished copies of segments that should no longer be uploaded."""
        with self._lock:
            return [
                (at, record)
                for topic_id, segments in self._sealed.items()
                for at, record in segments.items()
                if record.tier is not None
                and not self._is_to_upload(topic_id, record)
                and self.has(at.shard)
            ]

    def shards_with_local_copies(self) -> list[str]:
        """Shards with tiered segments whose bytes are also local."""
        with self._lock:
            shards = {at.shard for at, record in self._tiered.items() if record.holders}
            return sorted(filter(self.has, shards))

    def dead_copies(self) -> list[tuple[SegmentId, SegmentRecord]]:
        """Deleted segments that may still have objects."""
        with self._lock:
            return [(at, record) for at, record in self._dead.items() if self.has(at.shard)]

    def graves(self) -> list[GraveRecord]:
        """Copies of deleted shards whose objects may still exist."""
        with self._lock:
            return list(self._graves.values())

    @property
    def has_copies(self) -> bool:
        """Whether some segment has a finished copy."""
        return bool(self._tiered)

    def dead_ids(self, name: str) -> set[str]:
        """Ids of deleted topics of this name that still have copies."""
        parsed = [parse(grave.tier.key) for grave in self.graves()]
        return {each.topic_id for each in parsed if each is not None and each.topic == name}

    def grave_count(self) -> int:
        return len(self._graves)

    def totals(self) -> Totals:
        """Of all topics together."""
        by_topic = self.totals_by_topic().values()
        return Totals(*map(sum, zip(*by_topic, strict=True))) if by_topic else NOTHING

    def totals_by_topic(self) -> dict[str, Totals]:
        """By topic id, for topics with tiered or waiting segments."""
        counts: dict[str, list[int]] = {}
        with self._lock:
            for at, record in self._waiting():
                _count(counts, at, record, 0)
            for at, record in self._tiered.items():
                if not self.has(at.shard):
                    continue
                _count(counts, at, record, 2)
                if record.holders:
                    _count(counts, at, record, 4)
        return {topic_id: Totals(*each) for topic_id, each in counts.items()}

    def _waiting(self) -> Iterator[tuple[SegmentId, SegmentRecord]]:
        for topic_id, segments in self._sealed.items():
            for at, record in segments.items():
                if self._is_to_upload(topic_id, record):
                    if self.has(at.shard):
                        yield at, record
                elif not self._is_tiered(topic_id):
                    break

    def _is_tiered(self, topic_id: str) -> bool:
        topic = self._topics.get(topic_id)
        return topic is not None and topic.is_ready and topic.config.is_tiered

    def _is_to_upload(self, topic_id: str, record: SegmentRecord) -> bool:
        if not self._is_tiered(topic_id):
            return False
        # A memory topic's segments end with the process, except those that were spilled to files.
        is_volatile = self._topics[topic_id].config.storage_type == StorageType.MEMORY.value
        return not is_volatile or record.medium is Medium.FILE

    # Following ----------------------------------------------------------------------------------

    def _follow_topics(self, events: list[Event]) -> None:
        with self._lock:
            for event in events:
                before = self._ids.pop(event.key.removeprefix(TOPICS), None)
                if before is not None:
                    self._topics.pop(before, None)
                    self._tiered_ids.discard(before)
                if event.entry is None:
                    continue
                record = decode(event.entry, TopicRecord)
                self._ids[record.name] = record.topic_id
                topic = TieredTopic(
                    record=record,
                    config=record.config(),
                    is_ready=record.state is TopicState.READY,
                )
                self._topics[record.topic_id] = topic
                if topic.config.is_tiered:
                    self._tiered_ids.add(record.topic_id)
        self.on_change()

    def _follow_shards(self, events: list[Event]) -> None:
        has_gained = False
        with self._lock:
            for event in events:
                name = event.key.removeprefix(SHARDS)
                before = self._shards.pop(name, None)
                if event.entry is None:
                    continue
                record = self._shards[name] = decode(event.entry, ShardRecord)
                is_moved = before is not None and before.leader != record.leader
                has_gained = has_gained or (is_moved and self.share.has(record))
        if has_gained:
            self.on_gained()
            self.on_change()

    def _follow_segments(self, events: list[Event]) -> None:
        with self._lock:
            for event in events:
                shard, _, seq = event.key.removeprefix(SEGMENTS).rpartition("/")
                at = SegmentId(shard, int(seq))
                self._forget(at)
                if event.entry is None:
                    continue
                try:
                    record = decode(event.entry, SegmentRecord)
                except Corruption as error:  # Other segments must still be processed.
                    _log.error("segment_unreadable", shard=shard, segment=at.seq, error=str(error))
                    continue
                # Producers are the largest part of a record, and the ledger does not need them.
                self._note(at, msgspec.structs.replace(record, producers=()))
        self.on_change()

    def _follow_graves(self, events: list[Event]) -> None:
        with self._lock:
            for event in events:
                if event.entry is None:
                    self._graves.pop(event.key, None)
                else:
                    self._graves[event.key] = decode(event.entry, GraveRecord)
        self.on_change()

    def _note(self, at: SegmentId, record: SegmentRecord) -> None:
        match record.state:
            case SegmentState.SEALED:
                self._sealed.setdefault(_topic_id(at), {})[at] = record
                if record.tier is not None:
                    self._begun.add(at)
            case SegmentState.TIERED:
                self._tiered[at] = record
            case SegmentState.DELETED if record.tier is not None:
                self._dead[at] = record

    def _forget(self, at: SegmentId) -> None:
        self._begun.discard(at)
        self._tiered.pop(at, None)
        self._dead.pop(at, None)
        topic_id = _topic_id(at)
        segments = self._sealed.get(topic_id)
        if segments is not None:
            segments.pop(at, None)
            if not segments:
                del self._sealed[topic_id]


def _count(counts: dict[str, list[int]], at: SegmentId, record: SegmentRecord, field: int) -> None:
    """Adds a segment to a field of Totals, and its bytes to the next field."""
    totals = counts.setdefault(_topic_id(at), [0] * len(NOTHING))
    totals[field] += 1
    totals[field + 1] += record.length


def _topic_id(at: SegmentId) -> str:
    return at.shard.rpartition("_")[0]
