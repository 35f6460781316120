"""Drops what is here and in the store, and removes from the store what is dead.

Dropping here: the store is asked once more whether it has the copy in full, the head of its index
goes to the cache, the metadata says that the bytes are there alone, and then they go. Removing
there: the shard's manifest says first where the shard begins now, so that a recovery does not miss
what is gone; then the objects go, the manifest of the segment before the rest; then the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from firnmq.clock import Clock
from firnmq.disk.files import Buffer
from firnmq.engines.api import ShardStatus
from firnmq.engines.retention import to_drop_here
from firnmq.engines.segments import SegmentMeta
from firnmq.engines.state import ShardState
from firnmq.engines.tier import TierCopy
from firnmq.errors import (
    Corruption,
    FirnError,
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
from firnmq.tiering.cache import CacheStatistics
from firnmq.tiering.keys import parse
from firnmq.tiering.ledger import SegmentId, TieredTopic, TierLedger
from firnmq.tiering.manifests import ManifestKeeper
from firnmq.tiering.upkeep import ManifestUpkeep
from firnmq.tiering.uploader import CopyEngine, SegmentUploader

_log = EventLogger("tiering")

_AT_ONCE = 300
"""Copies whose objects are removed together; S3 takes 1,000 names in a request."""
LOCAL_TROUBLE = (Corruption, StorageFailed)
"""What one shard may fail with, which says nothing of others or of the store."""
_WHOLE_SHARD = -1
"""In the place of a segment's number, where trouble is not one segment's."""


class TierEngine(CopyEngine, Protocol):
    """What a mover asks of an engine."""

    def status(self, shard: str) -> ShardStatus: ...

    def abandon_copy(self, shard: str, seq: int, upload_id: str) -> bool: ...

    def lose_copy(self, shard: str, seq: int, upload_id: str) -> TierCopy | None: ...

    def drop_local(self, shard: str, seq: int) -> None: ...

    def forget_copy(self, shard: str, seq: int) -> None: ...

    def refuse_tiered(self, refusal: FirnError | None) -> None: ...


class GraveYard(Protocol):
    """Where copies are remembered that have outlived their shards."""

    def forget_graves(self, graves: Sequence[GraveRecord]) -> None: ...


class Primable(Protocol):
    """The cache of cold reads, as far as a mover needs it."""

    def prime(self, meta: SegmentMeta, index_head: Buffer) -> None: ...

    def statistics(self) -> CacheStatistics: ...


class Remover:
    """For the mover's thread."""

    def __init__(
        self,
        *,
        ledger: TierLedger,
        engines: Mapping[str, TierEngine],
        uploader: SegmentUploader,
        manifests: ManifestKeeper,
        upkeep: ManifestUpkeep,
        state: ShardState,
        graves: GraveYard,
        clock: Clock,
        cold: Primable | None,
        is_busy: Callable[[SegmentId], bool],
        note_failure: Callable[[SegmentId, Exception], None],
    ) -> None:
        """`is_busy`: whether a segment is being uploaded, or has failed a short while ago."""
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
        """Segments whose bytes here were dropped."""
        self.removed_count = 0
        """Segments whose objects were removed."""

    # Here ---------------------------------------------------------------------------------------

    def drop_local(self) -> None:
        """Drops every copy here that its topic's local retention does not keep."""
        now_ms = self._clock.now_ms()
        for shard in self._ledger.shards_with_local_copies():
            topic = self._ledger.topic_of(shard)
            if topic is None or not topic.is_ready or not topic.config.is_tiered:
                continue
            config = topic.config
            if config.local_retention_ms is None and config.local_retention_bytes is None:
                continue
            try:
                self._drop_of(topic, shard, now_ms)
            except (StaleEpoch, ShardNotFound):
                continue
            except LOCAL_TROUBLE as error:
                self._note_failure(SegmentId(shard, _WHOLE_SHARD), error)

    def _drop_of(self, topic: TieredTopic, shard: str, now_ms: int) -> None:
        """Drops what is due of one shard; what the store does not have as it should stays here."""
        status = self._engine(topic).status(shard)
        active_bytes = status.length_bytes - sum(
            meta.length for meta in status.segments if meta.is_sealed
        )
        for meta in to_drop_here(status.segments, topic.config, active_bytes, now_ms):
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

    # There --------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._ledger.dead_copies() or self._ledger.unwanted() or self.grave_count())

    def work(self) -> None:
        """Removes the objects of deleted segments and topics, and of copies nobody wants."""
        self._remove_dead()
        self._abandon_unwanted()
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
            self._upkeep.write_shard(topic, shard)
            for first in range(0, len(dead), _AT_ONCE):
                part = dead[first : first + _AT_ONCE]
                self._uploader.remove(*(copy for _, copy in part))
                for seq, _ in part:
                    self._engine(topic).forget_copy(shard, seq)
                self.removed_count += len(part)
            _log.info("objects_removed", shard=shard, segments=len(dead))

    def _abandon_unwanted(self) -> None:
        """Copies that were begun before their topic's tiering was turned off."""
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
                self._uploader.remove(record.tier)  # Else somebody has finished it: it counts.

    def lose_copy(self, shard: str, seq: int, upload_id: str) -> bool:
        """Has the metadata forget a copy that is not whole any more, of a segment that is here, and
        removes what is left of it, which a recovery would take for a loss. In any thread."""
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
        """Whether the metadata names the copy now: somebody may just have finished it."""
        shard = self._ledger.shard(at.shard)
        if shard is None:
            return True  # Its graves tell.
        meta = self._state.segment(shard.uid, at.seq)
        return meta is not None and meta.tier is not None and meta.tier.key == copy.key

    def grave_count(self) -> int:
        """Copies whose shards are gone and whose objects are still to be removed."""
        return self._ledger.grave_count()

    def _clear_graves(self) -> None:
        """Removes what deleted topics have left. Their own manifests go first, so that a recovery
        does not bring back a topic that was deleted."""
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

    def _engine(self, topic: TieredTopic) -> TierEngine:
        return self._engines[topic.config.storage_type]


def _topic_of(key: str) -> tuple[str, str] | None:
    """Name and id of the topic that a copy is of."""
    parsed = parse(key)
    return None if parsed is None else (parsed.topic, parsed.topic_id)
