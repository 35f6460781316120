"""Drops local segments that are in the store, and removes objects of deleted segments.

Dropping a local segment: check once more that the store has the complete copy; cache the head of
its index; mark the segment as not local in the metadata; delete the local bytes. Removing objects:
write the shard's new start to its manifest, so that a recovery does not report the removed range as
a gap; delete the objects, the segment's manifest first; delete the metadata record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from firnmq.clock import Clock
from firnmq.disk.files import Buffer
from firnmq.engines.api import TieringEngine
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardState
from firnmq.engines.retention import to_drop_here
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import (
    Corruption,
    ObjectCorrupt,
    ObjectNotFound,
    ObjectTruncated,
    ShardNotFound,
    StaleEpoch,
    StorageFailed,
    StoreError,
)
from firnmq.eventlog import EventLogger
from firnmq.meta.records import GraveRecord
from firnmq.tiering.archive.manifest_writer import ManifestWriter
from firnmq.tiering.archive.upkeep import ManifestUpkeep
from firnmq.tiering.cold.cache import CacheStatistics
from firnmq.tiering.format.object_names import parse
from firnmq.tiering.move.ledger import SegmentId, TieredTopic, TierLedger
from firnmq.tiering.move.uploader import SegmentUploader

_log = EventLogger("tiering")

_AT_ONCE = 300
"""Copies whose objects are removed together; S3 takes 1,000 names in a request."""
LOCAL_TROUBLE = (Corruption, StorageFailed)
"""Errors of one shard, which say nothing about other shards or the store."""
_WHOLE_SHARD = -1
"""Stands for a segment number where a failure concerns the whole shard."""


class GraveYard(Protocol):
    """Records of copies whose shards were deleted."""

    def forget_graves(self, graves: Sequence[GraveRecord]) -> None: ...


class Primable(Protocol):
    """The methods of the cold cache that a mover needs."""

    def prime(self, meta: SegmentMeta, index_head: Buffer) -> None: ...

    def statistics(self) -> CacheStatistics: ...


class Remover:
    """Used by the mover's thread only, except where a method says otherwise."""

    def __init__(
        self,
        *,
        ledger: TierLedger,
        engines: Mapping[str, TieringEngine],
        uploader: SegmentUploader,
        manifests: ManifestWriter,
        upkeep: ManifestUpkeep,
        state: ShardState,
        graves: GraveYard,
        clock: Clock,
        cold: Primable | None,
        is_busy: Callable[[SegmentId], bool],
        note_failure: Callable[[SegmentId, Exception], None],
    ) -> None:
        """`is_busy` says whether a segment is being uploaded, or waits after a failure."""
        self._is_busy = is_busy
        self._note_failure = note_failure
        self._ledger = ledger
        self._engines = engines
        self._uploader = uploader
        self._manifests = manifests
        self._upkeep = upkeep
        self._state = state
        self._graves = graves
        self._clock = clock
        self._cold = cold
        self.dropped_count = 0
        """Segments whose local bytes were dropped."""
        self.removed_count = 0
        """Segments whose objects were removed."""

    # Local copies -------------------------------------------------------------------------------

    def drop_local(self) -> None:
        """Drops every local copy that is beyond its topic's local retention."""
        for shard in self._ledger.shards_with_local_copies():
            topic = self._ledger.topic_of(shard)
            if topic is None or not topic.is_ready or not topic.config.is_tiered:
                continue
            config = topic.config
            if config.local_retention_ms is None and config.local_retention_bytes is None:
                continue
            try:
                self._drop_of(topic, shard)
            except (StaleEpoch, ShardNotFound):
                continue
            except LOCAL_TROUBLE as error:
                self._note_failure(SegmentId(shard, _WHOLE_SHARD), error)

    def _drop_of(self, topic: TieredTopic, shard: str) -> None:
        """Drops the expired local copies of one shard. A segment stays if the store's copy of it is
        missing or damaged."""
        status = self._engine(topic).status(shard)
        active_bytes = status.length_bytes - sum(
            meta.length for meta in status.segments if meta.is_sealed
        )
        for meta in to_drop_here(status.segments, topic.config, active_bytes, self._clock):
            at = SegmentId(shard, meta.seq)
            if self._is_busy(at):
                continue
            try:
                self._drop(topic, shard, meta)
            except (ObjectNotFound, ObjectTruncated, ObjectCorrupt) as error:
                self._note_failure(at, error)

    def _drop(self, topic: TieredTopic, shard: str, meta: SegmentMeta) -> None:
        index_head = self._uploader.check(meta)
        if self._cold is not None:
            self._cold.prime(meta, index_head)
        self._engine(topic).drop_local(shard, meta.seq)
        self.dropped_count += 1
        _log.info("local_copy_dropped", shard=shard, segment=meta.seq, length=meta.length)

    # Objects ------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        graves = self.grave_count() if self._ledger.share.is_keeper else 0
        return bool(self._ledger.dead_copies() or self._ledger.unwanted() or graves)

    def work(self) -> None:
        """Removes the objects of deleted segments and topics, and of abandoned copies."""
        self._remove_dead()
        self._abandon_unwanted()
        if self._ledger.share.is_keeper:
            self._clear_graves()

    def _remove_dead(self) -> None:
        by_shard: dict[str, list[tuple[int, TierCopy]]] = {}
        for at, record in self._ledger.dead_copies():
            if record.tier is not None and not self._is_busy(at):
                by_shard.setdefault(at.shard, []).append((at.seq, record.tier))
        for shard, dead in by_shard.items():
            topic = self._ledger.topic_of(shard)
            if topic is None:
                continue  # The topic is being deleted: its graves list the objects.
            engine = self._engine(topic)
            dead = [each for each in dead if not engine.shows(shard, each[0])]
            if not dead:
                continue
            self._upkeep.write_shard(topic, shard)
            for first in range(0, len(dead), _AT_ONCE):
                part = dead[first : first + _AT_ONCE]
                self._uploader.remove(*(copy for _, copy in part))
                for seq, _ in part:
                    engine.forget_copy(shard, seq)
                self.removed_count += len(part)
            _log.info("objects_removed", shard=shard, segments=len(dead))

    def _abandon_unwanted(self) -> None:
        """Removes copies that were begun before their topic's tiering was turned off."""
        for at, record in self._ledger.unwanted():
            topic = self._ledger.topic_of(at.shard)
            if topic is None or not topic.is_ready or record.tier is None or self._is_busy(at):
                continue
            try:
                is_ours = self._engine(topic).abandon_copy(at.shard, at.seq, record.tier.upload_id)
            except (StaleEpoch, ShardNotFound):
                continue
            except LOCAL_TROUBLE as error:
                self._note_failure(at, error)
                continue
            if is_ours and not self._is_referred_to(at, record.tier):
                self._uploader.remove(record.tier)  # Otherwise it was finished, and is in use.

    def lose_copy(self, shard: str, seq: int, upload_id: str) -> bool:
        """Removes an incomplete copy of a local segment from the metadata, then its remaining
        objects, which a recovery would report as lost data. Safe in any thread."""
        topic = self._ledger.topic_of(shard)
        if topic is None or not topic.is_ready:
            return False
        try:
            lost = self._engine(topic).lose_copy(shard, seq, upload_id)
        except (StaleEpoch, ShardNotFound):
            return False
        if lost is None:
            return False
        _log.warning("copied_again", shard=shard, segment=seq, key=lost.key)
        try:
            self._uploader.remove(lost)
        except StoreError as error:  # The scrubber finds what is left.
            _log.warning("objects_left", key=lost.key, error=str(error))
        return True

    def _is_referred_to(self, at: SegmentId, copy: TierCopy) -> bool:
        """Whether the metadata refers to the copy now: an upload may just have finished it."""
        shard = self._ledger.shard(at.shard)
        if shard is None:
            return True  # The shard was deleted; its graves list the objects.
        meta = self._state.segment(shard.uid, at.seq)
        return meta is not None and meta.tier is not None and meta.tier.key == copy.key

    def grave_count(self) -> int:
        """Copies of deleted shards whose objects are still to be removed."""
        return self._ledger.grave_count()

    def _clear_graves(self) -> None:
        """Removes the objects of deleted topics. Topic manifests are removed first, so that a
        recovery does not bring back a deleted topic."""
        graves = self._ledger.graves()
        for topic in {_topic_of(each.tier.key) for each in graves}:
            if topic is not None:
                self._manifests.remove_topic(*topic)
        for first in range(0, len(graves), _AT_ONCE):
            part = graves[first : first + _AT_ONCE]
            self._uploader.remove(*(grave.tier for grave in part))
            self._graves.forget_graves(part)
            self.removed_count += len(part)
        if graves:
            _log.info("objects_removed", graves=len(graves))

    def _engine(self, topic: TieredTopic) -> TieringEngine:
        return self._engines[topic.config.storage_type]


def _topic_of(key: str) -> tuple[str, str] | None:
    """Name and id of a copy's topic."""
    parsed = parse(key)
    return None if parsed is None else (parsed.topic, parsed.topic_id)
