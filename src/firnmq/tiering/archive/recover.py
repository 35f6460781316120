"""Finds a cluster in its object store, when the store is all that is left of it.

A topic is found by its manifest; a topic without one was deleted. A shard's manifest says where the
shard begins and what was deleted from it. The manifests of its segments, each written last in its
upload, say which segments exist. Of several copies of a range the newest counts. The segments
should be contiguous from the shard's start on. Everything that is missing or unreadable is reported
before the recovery writes anything: afterwards the lost offsets may be assigned again, and objects
that nothing refers to are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TypeVar

import msgspec

from firnmq.config import StorageType, TopicConfig
from firnmq.engines.catalog.transactions import AbortedTransaction, OpenTransaction
from firnmq.engines.deletion.deletions import as_one
from firnmq.engines.shardlog.producers import Producer
from firnmq.errors import (
    Corruption,
    FirnError,
    InvalidArgument,
    InvalidField,
    ObjectNotFound,
    ObjectTruncated,
)
from firnmq.record import Buffer, crc32c
from firnmq.record.deletion import Deletion
from firnmq.tiering.archive.group_offsets import GroupOffsets, numbers_in, read_groups
from firnmq.tiering.archive.ownership import clusters_in
from firnmq.tiering.format.fields import SHARD_COUNT_MAX
from firnmq.tiering.format.index_layout import HEADER_BYTES, Header, Section, SectionKind
from firnmq.tiering.format.index_sections import parse_aborted, parse_deletions, parse_producers
from firnmq.tiering.format.manifest import (
    GroupsManifest,
    SegmentManifest,
    ShardManifest,
    StoredOffset,
    TopicManifest,
    read_manifest,
)
from firnmq.tiering.format.object_names import (
    INDEX,
    MANIFEST,
    MANIFESTS,
    SEGMENT,
    ManifestObject,
    cluster_manifest_prefix,
    groups_key,
    parse,
    parse_manifest,
    shard_prefix,
)
from firnmq.tiering.stores import ObjectInfo, ObjectStore

_PARALLEL = 16
"""Manifests read at the same time: each is one round trip."""

A = TypeVar("A")
B = TypeVar("B")
M = TypeVar("M", TopicManifest, ShardManifest)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that a shard should have and the store does not: [start_offset, end_offset)."""

    topic: str
    shard: str
    start_offset: int
    end_offset: int


class ClampedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A group's committed offset beyond the shard's end: the group continues at the new end."""

    group: str
    topic: str
    shard: str
    committed_offset: int
    end_offset: int


class GapsFound(FirnError):
    """The history in the store has gaps; nothing was written."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        first = gaps[0]
        more = f", and {len(gaps) - 1:,} more" if len(gaps) > 1 else ""
        super().__init__(
            f"offsets {first.start_offset:,} to {first.end_offset - 1:,} of {first.topic} "
            f"({first.shard}) are not in the store{more}; --skip-gaps recovers the rest"
        )
        self.gaps = list(gaps)


@dataclass(slots=True, kw_only=True)
class FoundShard:
    """One shard as found in the store."""

    name: str
    start_offset: int
    epoch: int
    has_manifest: bool
    segments: list[SegmentManifest] = field(default_factory=list)
    """In order; between two of them there may be a gap."""
    gaps: list[Gap] = field(default_factory=list)
    holes: tuple[int, ...] = ()
    dead_keys: tuple[tuple[bytes, int], ...] = ()
    deletions: dict[int, Deletion] = field(default_factory=dict)
    """Of entries in the segments, by their offsets; they are among the two before."""
    has_lake: bool = False
    aborted: list[AbortedTransaction] = field(default_factory=list)
    doubtful: list[OpenTransaction] = field(default_factory=list)
    """Transactions whose end is lost in a gap; they count as aborted."""
    producers: tuple[tuple[int, bytes], ...] = ()
    """Idempotent producers at the end of the last segment."""

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else self.start_offset

    @property
    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """Transactions that are open at the end of the last segment."""
        last = self.segments[-1].transactions if self.segments else ()
        return tuple(OpenTransaction(*each) for each in last)


@dataclass(slots=True, kw_only=True)
class FoundTopic:
    manifest: TopicManifest
    shards: list[FoundShard]


@dataclass(slots=True, kw_only=True)
class FoundCluster:
    """Everything that can be recovered."""

    cluster: str
    topics: list[FoundTopic]
    passed_over: list[str]
    """Objects that cannot be used, with the reason."""
    groups: GroupsManifest | None = None
    """What consumer groups have committed, if the store has it."""

    def committed(self) -> tuple[GroupOffsets, list[ClampedOffset]]:
        """Committed offsets in the found shards, and those of them that were reduced: records from
        a shard's end on are lost, and new records get their offsets."""
        ends = {
            shard.name: (topic.manifest.topic, shard.end_offset)
            for topic in self.topics
            for shard in topic.shards
        }
        clamped = []
        groups: dict[str, dict[str, StoredOffset]] = {}
        for group, offsets in ({} if self.groups is None else self.groups.groups).items():
            for shard, entry in offsets.items():
                if shard not in ends:
                    continue
                topic, end_offset = ends[shard]
                if entry.offset > end_offset:
                    clamped.append(
                        ClampedOffset(
                            group=group,
                            topic=topic,
                            shard=shard,
                            committed_offset=entry.offset,
                            end_offset=end_offset,
                        )
                    )
                offset = min(entry.offset, end_offset)
                groups.setdefault(group, {})[shard] = msgspec.structs.replace(entry, offset=offset)
        return groups, clamped

    def gaps(self) -> list[Gap]:
        return [gap for topic in self.topics for shard in topic.shards for gap in shard.gaps]


def choose_cluster(store: ObjectStore, wanted: str | None) -> str:
    """The cluster to recover: the only one in the store, or the `wanted` one of several."""
    found = set(clusters_in(store))
    for info in store.list(MANIFESTS):
        parsed = parse_manifest(info.key)
        if parsed is not None:
            found.add(parsed.cluster)
    if not found:
        raise InvalidArgument(
            "tiering.url",
            f"there is nothing of FirnMQ in {store.url}; check the bucket and the prefix",
        )
    names = ", ".join(sorted(found))
    if wanted is not None:
        if wanted not in found:
            raise InvalidArgument(
                "cluster", f"{wanted!r} is not in {store.url}; there are: {names}"
            )
        return wanted
    if len(found) != 1:
        raise InvalidArgument(
            "cluster", f"{store.url} has several; name one with --cluster: {names}"
        )
    return found.pop()


def find_cluster(
    store: ObjectStore, cluster: str, *, skip_gaps: bool = False, topic: str | None = None
) -> FoundCluster:
    """Reads every manifest of the cluster, or of one of its topics. Raises GapsFound if there are
    gaps, unless `skip_gaps`."""
    return _Finder(store, cluster, topic).find(skip_gaps=skip_gaps)


class _Finder:
    def __init__(self, store: ObjectStore, cluster: str, topic: str | None = None) -> None:
        self._store = store
        self._cluster = cluster
        self._topic = topic
        self._passed_over: list[str] = []
        self._damaged: list[tuple[str, str]] = []
        """Keys of damaged objects that nothing else can replace, with reasons."""
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="firn-recover")

    def find(self, *, skip_gaps: bool) -> FoundCluster:
        with self._threads:
            topics = self._newest_by_name()
            shard_count = sum(topic.shard_count for topic in topics)
            if shard_count > SHARD_COUNT_MAX:
                raise Corruption(
                    f"topics have {shard_count:,} shards, at most {SHARD_COUNT_MAX:,} can be",
                    where=self._cluster,
                )
            shards = self._manifests(ShardManifest, is_topic=False)
            found = [
                FoundTopic(
                    manifest=topic,
                    shards=[
                        self._shard(topic, f"{topic.topic_id}_{seq}", shards)
                        for seq in range(topic.shard_count)
                    ],
                )
                for topic in topics
            ]
            cluster = FoundCluster(
                cluster=self._cluster, topics=found, passed_over=self._passed_over
            )
            cluster.groups = self._committed()
            gaps = cluster.gaps()
            if gaps and not skip_gaps:
                raise GapsFound(gaps)
            for each in found:
                for shard in each.shards:
                    self._read_beside(shard)
                    _abort_doubtful(shard)
            if self._damaged and not skip_gaps:
                key, reason = self._damaged[0]
                raise Corruption(f"{reason}; --skip-gaps recovers without it", where=key)
        return cluster

    # Topics and shards --------------------------------------------------------------------------

    def _newest_by_name(self) -> list[TopicManifest]:
        """Topics in the order of their names. Of two with one name, the earlier was deleted."""
        by_name: dict[str, TopicManifest] = {}
        manifests = self._manifests(TopicManifest, is_topic=True).values()
        for manifest in sorted(manifests, key=lambda each: (each.created_ms, each.topic_id)):
            before = by_name.get(manifest.topic)
            if before is not None:
                self._pass_over(f"topic {before.topic} ({before.topic_id})", "was replaced since")
            by_name[manifest.topic] = manifest
        return [by_name[name] for name in sorted(by_name)]

    def _manifests(self, kind: type[M], *, is_topic: bool) -> dict[str, M]:
        """By topic id or shard name: the newest readable manifest."""
        keys: dict[str, list[tuple[int, ObjectInfo]]] = {}
        for info in self._store.list(cluster_manifest_prefix(self._cluster)):
            parsed = parse_manifest(info.key)
            if parsed is None or self._topic not in (None, parsed.topic):
                continue
            if (parsed.shard is None) is is_topic:
                keys.setdefault(_subject(parsed), []).append((parsed.number, info))
        read = self._map(lambda found: self._newest(kind, found), keys.values())
        return {
            subject: manifest
            for subject, manifest in zip(keys, read, strict=True)
            if manifest is not None
        }

    def _newest(self, kind: type[M], found: list[tuple[int, ObjectInfo]]) -> M | None:
        damaged: list[tuple[str, str]] = []
        for _, info in sorted(found, key=lambda each: each[0], reverse=True):
            try:
                return _of_its_name(read_manifest(self._store, info.key, kind), info.key)
            except ObjectNotFound:
                continue  # A newer manifest replaced it after the list.
            except (Corruption, ObjectTruncated) as error:
                reason = error.reason if isinstance(error, Corruption) else str(error)
                self._pass_over(info.key, reason)
                damaged.append((info.key, reason))
        self._damaged += damaged
        return None

    def _committed(self) -> GroupsManifest | None:
        """The newest readable offsets of consumer groups; without them groups start over."""
        damaged = []
        for number in reversed(numbers_in(self._store, self._cluster)):
            key = groups_key(self._cluster, number)
            try:
                return read_groups(self._store, key)
            except ObjectNotFound:
                continue  # A newer object replaced it after the list.
            except (Corruption, ObjectTruncated) as error:
                self._pass_over(key, str(error))
                damaged.append((key, str(error)))
        self._damaged += damaged
        return None

    # Segments -----------------------------------------------------------------------------------

    def _shard(
        self, topic: TopicManifest, name: str, manifests: dict[str, ShardManifest]
    ) -> FoundShard:
        manifest = manifests.get(name)
        segments, lost = self._segments(topic, name)
        first = min((each.base_offset for each in segments), default=0)
        shard = FoundShard(
            name=name,
            start_offset=first if manifest is None else manifest.start_offset,
            epoch=0 if manifest is None else manifest.epoch,
            has_manifest=manifest is not None,
            holes=() if manifest is None else manifest.holes,
            dead_keys=() if manifest is None else manifest.dead_keys,
            has_lake=manifest is not None and manifest.has_lake is True,
        )
        self._chain(topic.topic, shard, segments)
        end = shard.end_offset
        shard.gaps += [
            Gap(topic=topic.topic, shard=name, start_offset=base, end_offset=after)
            for base, after in sorted(lost)
            if base >= end and after > shard.start_offset
        ]
        return shard

    def _segments(
        self, topic: TopicManifest, name: str
    ) -> tuple[list[SegmentManifest], set[tuple[int, int]]]:
        """Complete copies of the shard's segments, in any order; and the offset ranges of copies
        that were complete and are damaged."""
        prefix = shard_prefix(self._cluster, topic.topic, topic.topic_id, name)
        objects = {info.key: info for info in self._store.list(prefix)}
        keys = [
            key
            for key in objects
            if (parsed := parse(key)) is not None and parsed.suffix == MANIFEST
        ]
        found: list[SegmentManifest] = []
        lost: set[tuple[int, int]] = set()
        for key, read in zip(keys, self._map(self._segment, keys), strict=True):
            if read is None:
                continue
            reason = read if isinstance(read, str) else _incomplete(read, key, objects)
            if reason is not None:
                self._pass_over(key.removesuffix(MANIFEST), reason)
                parsed = parse(key)
                assert parsed is not None
                lost.add((parsed.base_offset, parsed.end_offset))
            elif isinstance(read, SegmentManifest):
                found.append(read)
        return found, lost

    def _segment(self, key: str) -> SegmentManifest | str | None:
        """A manifest, or the reason why it is unusable; None if it was just removed."""
        try:
            return read_manifest(self._store, key, SegmentManifest)
        except ObjectNotFound as error:
            self._pass_over(key, str(error))
            return None
        except (Corruption, ObjectTruncated) as error:
            return str(error)

    def _chain(self, topic: str, shard: FoundShard, segments: list[SegmentManifest]) -> None:
        """Orders the segments. A shard whose first segments are missing begins later."""
        best: dict[int, SegmentManifest] = {}
        first: dict[int, int] = {}
        for each in segments:
            if each.length:  # An empty segment stands for a gap that an earlier recovery skipped.
                first[each.claim] = min(each.base_offset, first.get(each.claim, each.base_offset))
        for each in segments:
            if each.end_offset <= shard.start_offset:
                continue  # Its removal has begun.
            if any(each.claim < claim and each.end_offset > first[claim] for claim in first):
                self._pass_over(each.key, "is of a directory that had been replaced by then")
                continue
            other = best.get(each.base_offset)
            if other is None or _rank(each) > _rank(other):
                best[each.base_offset] = each
        at = shard.start_offset
        for base in sorted(best):
            segment = best[base]
            if shard.segments and base < at:
                self._pass_over(segment.key, f"overlaps what ends at {at:,}")
                continue
            # A gap gets a segment number too, between those of its neighbours.
            if shard.segments and segment.seq <= shard.segments[-1].seq + (base > at):
                self._pass_over(segment.key, f"field seq: {segment.seq} is not after those before")
                continue
            if base > at:
                gap = Gap(topic=topic, shard=shard.name, start_offset=at, end_offset=base)
                shard.gaps.append(gap)
            shard.segments.append(segment)
            at = segment.end_offset
        if shard.segments:
            shard.start_offset = max(shard.start_offset, shard.segments[0].base_offset)

    def _read_beside(self, shard: FoundShard) -> None:
        """Reads what the indexes have for the shard as a whole: aborted transactions whose end is
        in the found segments, as later ones are open, and deletions. The manifest has the newest
        deletions; if it is old or damaged, the entries in the log still count."""
        found: set[AbortedTransaction] = set()
        for aborted, deletions in self._map(self._beside, shard.segments):
            found.update(aborted)
            shard.deletions.update(deletions)
        shard.aborted = sorted(
            each for each in found if shard.start_offset <= each.last_offset < shard.end_offset
        )
        if shard.segments:
            shard.producers = self._producers(shard.segments[-1])
        whole = as_one([Deletion(shard.holes, shard.dead_keys), *shard.deletions.values()])
        shard.holes, shard.dead_keys = whole

    def _producers(self, segment: SegmentManifest) -> tuple[tuple[int, bytes], ...]:
        """All producers are in a segment's index, the newest of them in its manifest too."""
        key = segment.key + INDEX
        try:
            header = Header.unpack(self._store.get_range(key, 0, HEADER_BYTES), key)
            section = self._section(key, header.sections[SectionKind.PRODUCERS])
            found = parse_producers(section, header, key)
            for _, state in found:
                Producer.unpack(state)
        except (Corruption, ObjectTruncated):
            return segment.producers  # That the index is damaged is noted elsewhere.
        return tuple(found)

    def _beside(
        self, segment: SegmentManifest
    ) -> tuple[list[AbortedTransaction], list[tuple[int, Deletion]]]:
        """Aborted transactions and deletions in a segment's index."""
        key = segment.key + INDEX
        try:
            header = Header.unpack(self._store.get_range(key, 0, HEADER_BYTES), key)
            is_of_segment = (header.length, header.base_offset, header.end_offset) == (
                segment.index_length,
                segment.base_offset,
                segment.end_offset,
            )
            if not is_of_segment:
                raise Corruption("is the index of another segment", where=key)
            aborted = self._section(key, header.sections[SectionKind.ABORTED])
            deletions = self._section(key, header.sections[SectionKind.DELETIONS])
            return parse_aborted(aborted, header, key), parse_deletions(deletions, header, key)
        except (Corruption, ObjectTruncated) as error:
            self._pass_over(key, str(error))
            self._damaged.append((key, str(error)))
            return [], []

    def _section(self, key: str, section: Section) -> Buffer:
        if not section.length:
            return b""
        content = self._store.get_range(key, section.position, section.length)
        if crc32c(content) != section.crc:
            raise Corruption("a CRC does not match", where=key, position=section.position)
        return content

    # ------------------------------------------------------------------------------------------

    def _map(self, read: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        return self._threads.map(read, items)

    def _pass_over(self, what: str, reason: str) -> None:
        self._passed_over.append(f"{what}: {reason}")


def _abort_doubtful(shard: FoundShard) -> None:
    """Counts transactions as aborted that are open before a gap and not open after it.

    Their end, and possibly some of their records, is lost. A read_committed reader must not see
    records that may have been aborted. The report lists these transactions.
    """
    for before, after in pairwise(shard.segments):
        if before.end_offset == after.base_offset:
            continue
        known = {(each.producer_id, each.first_offset) for each in shard.aborted}
        known |= {(each[0], each[2]) for each in after.transactions}
        doubtful = [
            OpenTransaction(*each)
            for each in before.transactions
            if (each[0], each[2]) not in known
        ]
        if not doubtful:
            continue
        taken = {each.last_offset for each in shard.aborted}
        gap = range(before.end_offset, after.base_offset)
        # Each marker had an offset in the gap; any free one will do.
        free = list(islice((at for at in gap if at not in taken), len(doubtful)))
        if len(free) < len(doubtful):
            raise Corruption(
                f"{len(doubtful)} transactions were open where offsets from {gap.start:,} on are "
                f"missing, too many to have ended in {len(gap):,}",
                where=shard.name,
            )
        stable_offset = min(each[2] for each in before.transactions)
        shard.aborted += [
            AbortedTransaction(each.producer_id, each.first_offset, at, stable_offset)
            for each, at in zip(doubtful, free, strict=True)
        ]
        shard.doubtful += doubtful


def _subject(parsed: ManifestObject) -> str:
    return parsed.topic_id if parsed.shard is None else parsed.shard


def _rank(manifest: SegmentManifest) -> tuple[int, int, int, str]:
    return manifest.claim, manifest.epoch, manifest.uploaded_ms, manifest.upload_id


def _of_its_name(manifest: M, key: str) -> M:
    """The manifest, checked to match its object's name and to have valid options."""
    parsed = parse_manifest(key)
    assert parsed is not None
    for name in ("cluster", "topic", "topic_id", "number"):
        if getattr(manifest, name) != getattr(parsed, name):
            raise InvalidField(name, "is not that of the object's name", where=key)
    if isinstance(manifest, ShardManifest):
        if manifest.shard != parsed.shard:
            raise InvalidField("shard", "is not that of the object's name", where=key)
        return manifest
    try:
        config = TopicConfig.from_options(manifest.options)
        StorageType(config.storage_type)  # Only topics of the built-in engines have copies.
    except (InvalidArgument, ValueError) as error:
        raise InvalidField("options", str(error), where=key) from error
    return manifest


def _incomplete(manifest: SegmentManifest, key: str, objects: dict[str, ObjectInfo]) -> str | None:
    parsed = parse(key)
    if manifest.key + MANIFEST != key or parsed is None:
        return "the manifest is another object's"
    for name in ("cluster", "topic", "topic_id", "shard", "base_offset", "end_offset", "upload_id"):
        if getattr(manifest, name) != getattr(parsed, name):
            return f"field {name}: is not that of the object's name"
    try:
        for _, state in manifest.producers:
            Producer.unpack(state)
    except Corruption as error:
        return f"field producers: {error.reason}"
    for suffix, size in ((SEGMENT, manifest.length), (INDEX, manifest.index_length)):
        info = objects.get(manifest.key + suffix)
        if info is None:
            return f"its {suffix} object is not there"
        if info.size != size:
            return f"its {suffix} object has {info.size:,} bytes where {size:,} belong"
    return None
