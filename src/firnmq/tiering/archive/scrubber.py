"""Compares the objects of a cluster with its metadata: finds orphans and missing objects.

The metadata records an upload before its first object exists. So the objects are listed first and
the metadata is read after: a listed object that the metadata does not refer to is an orphan for
good. In addition, objects younger than a grace period are kept. Their age is measured by the
store's clock, which is read by writing a small object.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

import msgspec

from firnmq.clock import Clock
from firnmq.engines.catalog.segments import SegmentState
from firnmq.errors import ObjectNotFound
from firnmq.eventlog import EventLogger
from firnmq.ids import TimestampMs
from firnmq.meta import MetaStore
from firnmq.meta.records import (
    SEGMENTS,
    TIER_GRAVES,
    TOPICS,
    GraveRecord,
    SegmentRecord,
    TopicRecord,
    decode,
    segment_key,
)
from firnmq.tiering.archive.ownership import is_claim
from firnmq.tiering.format.object_names import (
    INDEX,
    MANIFEST,
    SEGMENT,
    parse,
    parse_groups,
    parse_manifest,
)
from firnmq.tiering.stores import ObjectInfo, ObjectStore

_log = EventLogger("tiering")

_DELETE_AT_ONCE = 500
_SHOWN_MAX = 1000
"""Objects that a report names one by one; all are counted."""
_PROBE_FOLDER = "probes"
_SWEEP_MS = 24 * 3600 * 1000
"""Younger uploads may still be in progress, of this cluster or of another in the store."""


Mend = Callable[[str, int, str], bool]
"""Schedules a new upload of a segment, given by shard and number, if its copy still has this upload
id; whether it did."""


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """An object that nothing refers to."""

    key: str
    size: int
    age_ms: int
    """By the store's clock."""
    is_young: bool
    """Younger than the grace period: it stays for now."""
    is_ahead: bool
    """Its records are beyond the end of their shard, as after an older backup of the data directory
    was restored. It is kept, since it may be the only copy."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """An object that the metadata refers to and that is missing or has the wrong size."""

    shard: str
    segment_seq: int
    key: str
    reason: str
    is_local: bool
    """Whether the segment is also local, so that no data is lost."""
    is_mended: bool = False
    """Whether the segment is being uploaded again, under another name."""


class ScrubReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a scrub found and did."""

    is_dry_run: bool
    object_count: int
    """Objects of this cluster."""
    object_bytes: int
    foreign_count: int
    """Objects of other clusters or of other programs; never touched."""
    segment_count: int
    """Segments in the metadata that were checked."""
    orphan_count: int
    orphan_bytes: int
    young_count: int
    """Orphans that are kept because they are younger than the grace period."""
    ahead_count: int
    """Orphans that are kept because their records are beyond the end of their shard."""
    removed_count: int
    removed_bytes: int
    swept_count: int
    """Unfinished uploads that were discarded."""
    skew_ms: int
    """The store's clock minus ours."""
    orphans: list[Orphan]
    missing: list[Missing]
    mended_count: int = 0
    """Segments that are being uploaded again."""

    def with_others(self, others: Iterable[ScrubReport]) -> ScrubReport:
        """With what other nodes have done of the same scrub: each mends segments of its shards."""
        mended = {
            (each.shard, each.segment_seq)
            for report in (self, *others)
            for each in report.missing
            if each.is_mended
        }
        return msgspec.structs.replace(
            self,
            missing=[
                msgspec.structs.replace(each, is_mended=(each.shard, each.segment_seq) in mended)
                for each in self.missing
            ],
            mended_count=len(mended),
        )

    def log(self) -> None:
        if self.removed_count:
            _log.info("orphans_removed", count=self.removed_count, bytes=self.removed_bytes)
        if self.ahead_count:
            _log.error("store_is_ahead", objects=self.ahead_count)
        for each in self.missing[:10]:
            _log.error(
                "object_missing",
                shard=each.shard,
                segment=each.segment_seq,
                key=each.key,
                reason=each.reason,
                is_local=each.is_local,
                is_mended=each.is_mended,
            )


class _Wanted:
    """The metadata's references to objects, at one moment."""

    def __init__(self, meta: MetaStore) -> None:
        self.segments: list[tuple[str, int, SegmentRecord]] = []
        """Tiered segments, with shard and number."""
        self.keys: set[str] = set()
        """Keys of copies: finished, in progress, or about to be removed by the mover."""
        self.topic_ids: set[str] = set()
        self.ends: dict[str, int] = {}
        """By shard: the start of its active segment. Nothing beyond it was ever uploaded."""
        # Topics are read last: a topic that is created during the scrub must not look deleted.
        for entry in meta.range(SEGMENTS).entries:
            record = decode(entry, SegmentRecord)
            shard, _, seq = entry.key.removeprefix(SEGMENTS).rpartition("/")
            if record.state is SegmentState.ACTIVE:
                self.ends[shard] = record.start
            if record.tier is None:
                continue
            self.keys.add(record.tier.key)
            if record.state is SegmentState.TIERED:
                self.segments.append((shard, int(seq), record))
        for entry in meta.range(TIER_GRAVES).entries:
            self.keys.add(decode(entry, GraveRecord).tier.key)
        for entry in meta.range(TOPICS).entries:
            self.topic_ids.add(decode(entry, TopicRecord).topic_id)


class _StoreClock(Clock):
    """The object store's clock, as it was last read."""

    def __init__(self, ours: Clock) -> None:
        super().__init__()
        self._ours = ours
        self.read_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.read_ms)

    def steady_ms(self) -> int:
        return self._ours.steady_ms()


class Scrubber:
    """One scrub at a time."""

    def __init__(
        self, store: ObjectStore, cluster: str, meta: MetaStore, clock: Clock, *, grace_ms: int
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._meta = meta
        self._clock = clock
        self._grace_ms = grace_ms
        self._store_clock = _StoreClock(clock)

    def scrub(
        self,
        *,
        dry_run: bool,
        removes: bool = True,
        grace_ms: int | None = None,
        mend: Mend | None = None,
    ) -> ScrubReport:
        """Checks all objects; removes orphans older than the grace period unless it is a dry run,
        or another node `removes` them.

        `mend` is called for local segments whose copies are incomplete.
        """
        grace_ms = self._grace_ms if grace_ms is None else grace_ms
        now_ms, skew_ms = self._store_time()
        self._store_clock.read_ms = now_ms
        listed: dict[str, ObjectInfo] = {}
        foreign_count = 0
        for info in self._store.list(""):
            if self._is_ours(info.key):
                listed[info.key] = info
            elif not is_claim(info.key):
                foreign_count += 1
        wanted = _Wanted(self._meta)
        orphans = [
            Orphan(
                key=info.key,
                size=info.size,
                age_ms=(age_ms := self._store_clock.age_ms(info.modified_ms)),
                is_young=age_ms < grace_ms,
                is_ahead=self._is_ahead(info.key, wanted),
            )
            for info in listed.values()
            if self._is_orphan(info.key, wanted)
        ]
        old = [each for each in orphans if not each.is_young and not each.is_ahead]
        swept_count = 0
        if removes and not dry_run:
            for at in range(0, len(old), _DELETE_AT_ONCE):
                self._store.delete([each.key for each in old[at : at + _DELETE_AT_ONCE]])
            swept_count = self._store.sweep(
                "",
                before_ms=now_ms - max(grace_ms, _SWEEP_MS),
                is_meant=self._is_ours,
            )
        missing = list(self._missing(listed, wanted))
        mended = set() if mend is None else self._mended(missing, wanted, mend)
        return ScrubReport(
            is_dry_run=dry_run,
            object_count=len(listed),
            object_bytes=sum(info.size for info in listed.values()),
            foreign_count=foreign_count,
            segment_count=len(wanted.segments),
            orphan_count=len(orphans),
            orphan_bytes=sum(each.size for each in orphans),
            young_count=sum(each.is_young for each in orphans),
            ahead_count=sum(each.is_ahead for each in orphans),
            removed_count=len(old) if removes and not dry_run else 0,
            removed_bytes=sum(each.size for each in old) if removes and not dry_run else 0,
            swept_count=swept_count,
            skew_ms=skew_ms,
            orphans=orphans[:_SHOWN_MAX],
            missing=[
                msgspec.structs.replace(each, is_mended=(each.shard, each.segment_seq) in mended)
                for each in missing
            ],
            mended_count=len(mended),
        )

    def _mended(self, missing: list[Missing], wanted: _Wanted, mend: Mend) -> set[tuple[str, int]]:
        """Segments that are being uploaded again."""
        lost = {(each.shard, each.segment_seq) for each in missing if each.is_local}
        return {
            (shard, seq)
            for shard, seq, record in wanted.segments
            if (shard, seq) in lost
            and record.tier is not None
            and mend(shard, seq, record.tier.upload_id)
        }

    def _store_time(self) -> tuple[int, int]:
        """The time by the store's clock, and how far it is ahead of ours."""
        key = f"{_PROBE_FOLDER}/{self._cluster}/{secrets.token_hex(8)}"
        before_ms = self._clock.now_ms()
        self._store.put(key, b"what time is it")
        try:
            modified_ms = self._store.head(key).modified_ms
        finally:
            self._store.delete([key])
        return modified_ms, modified_ms - before_ms

    def _is_ours(self, key: str) -> bool:
        segment = parse(key)
        if segment is not None:
            return segment.cluster == self._cluster
        manifest = parse_manifest(key)
        if manifest is not None:
            return manifest.cluster == self._cluster
        groups = parse_groups(key)
        if groups is not None:
            return groups[0] == self._cluster
        return key.startswith(f"{_PROBE_FOLDER}/{self._cluster}/")

    def _is_orphan(self, key: str, wanted: _Wanted) -> bool:
        segment = parse(key)
        if segment is not None:
            return key.removesuffix(segment.suffix) not in wanted.keys
        if parse_groups(key) is not None:
            return False
        # The writer of a newer manifest removes the older ones of an existing topic.
        manifest = parse_manifest(key)
        return manifest is None or manifest.topic_id not in wanted.topic_ids

    def _is_ahead(self, key: str, wanted: _Wanted) -> bool:
        segment = parse(key)
        end = None if segment is None else wanted.ends.get(segment.shard)
        return segment is not None and end is not None and segment.end_offset > end

    def _missing(self, listed: dict[str, ObjectInfo], wanted: _Wanted) -> Iterator[Missing]:
        for shard, seq, record in wanted.segments:
            copy = record.tier
            assert copy is not None
            for suffix, size in (
                (SEGMENT, record.length),
                (INDEX, copy.index_length),
                (MANIFEST, None),
            ):
                key = copy.key + suffix
                info = listed.get(key)
                if info is None or (size is not None and info.size != size):
                    reason = self._trouble(key, size)  # It may have been written after the list.
                    if reason is not None and self._is_still_wanted(shard, seq, copy.key):
                        yield Missing(
                            shard=shard,
                            segment_seq=seq,
                            key=key,
                            reason=reason,
                            is_local=bool(record.holders),
                        )

    def _is_still_wanted(self, shard: str, seq: int, key: str) -> bool:
        entry = self._meta.get(segment_key(shard, seq))
        if entry is None:
            return False
        record = decode(entry, SegmentRecord)
        return (
            record.state is SegmentState.TIERED
            and record.tier is not None
            and record.tier.key == key
        )

    def _trouble(self, key: str, size: int | None) -> str | None:
        try:
            found = self._store.head(key)
        except ObjectNotFound:
            return "is not there"
        if size is not None and found.size != size:
            return f"has {found.size:,} bytes where {size:,} belong"
        return None
