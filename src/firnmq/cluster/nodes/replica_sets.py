"""Where the active segments of shards with several replicas are, as this node's cache knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firnmq.engines.catalog.segments import SegmentState
from firnmq.meta import Event, MetaCache
from firnmq.meta.records import (
    SEGMENTS,
    SegmentRecord,
    decode,
    segment_seq_of,
    shard_of_segment,
)

_OPENED = b"opened"
"""Only the record of a segment with replicas contains this field name."""
_UNSEALED = (SegmentState.ACTIVE, SegmentState.FENCING)


class ReplicaSet(NamedTuple):
    """The replicas of a shard's active segment."""

    seq: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    is_fencing: bool
    """Leadership was taken away: nothing is appended until the segment is sealed."""


class ReplicaSets:
    """Safe with threads: changed by the cache's thread alone."""

    def __init__(self, cache: MetaCache) -> None:
        self._by_shard: dict[str, ReplicaSet] = {}
        self._lossy: set[str] = set()
        """Keys of segments whose seal may have lost records."""
        cache.listen(SEGMENTS, self._follow)

    def get(self, shard: str) -> ReplicaSet | None:
        """None for a shard with one replica, and for one that this node does not know."""
        return self._by_shard.get(shard)

    def items(self) -> Iterator[tuple[str, ReplicaSet]]:
        return iter(list(self._by_shard.items()))

    @property
    def lossy_count(self) -> int:
        """Segments that were sealed though too few replicas were known to have everything."""
        return len(self._lossy)

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            shard, seq = shard_of_segment(event.key), segment_seq_of(event.key)
            known = self._by_shard.get(shard)
            if event.entry is None or _OPENED not in event.entry.value:
                self._lossy.discard(event.key)
                if known is not None and known.seq == seq:
                    del self._by_shard[shard]
                continue
            record = decode(event.entry, SegmentRecord)
            if record.lossy and record.state is not SegmentState.DELETED:
                self._lossy.add(event.key)
            else:
                self._lossy.discard(event.key)
            if record.state in _UNSEALED and len(record.opened) > 1:
                if known is None or known.seq <= seq:
                    self._by_shard[shard] = ReplicaSet(
                        seq,
                        record.leader,
                        record.replicas,
                        tuple(each.node for each in record.isr),
                        record.state is SegmentState.FENCING,
                    )
            elif known is not None and known.seq == seq:
                del self._by_shard[shard]
