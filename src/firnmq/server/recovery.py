"""Creates a data directory from an object store, for `firn recover`.

It is built under a temporary name and renamed when it is complete, so that an interrupted recovery
leaves nothing that looks like a data directory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.clock import Clock, SystemClock
from firnmq.config import StorageType, TieringConfig
from firnmq.disk import Family, run_blocking, sync_directory
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.engines.deletion.deletions import folded
from firnmq.engines.shardlog.producers import pack_aborted
from firnmq.errors import InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.index.api import NEVER_MS, TIMESTAMP_MIN
from firnmq.index.layout import aborted_key, producer_key
from firnmq.meta.records import (
    NEXT_UID,
    Counter,
    LakeRecord,
    Record,
    Replica,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    encode,
    lake_key,
    segment_key,
    shard_key,
    topic_key,
)
from firnmq.record.deletion import Deletion
from firnmq.server.identity import directory_id
from firnmq.server.local import LocalStore
from firnmq.server.tier import existing_object_store
from firnmq.tiering.archive.ownership import Ownership, cluster_of
from firnmq.tiering.archive.recover import (
    ClampedOffset,
    FoundCluster,
    FoundShard,
    FoundTopic,
    Gap,
    choose_cluster,
    find_cluster,
)
from firnmq.tiering.format.manifest import SegmentManifest, StoredOffset
from firnmq.tiering.stores import ObjectStore

_UNFINISHED = ".recovering"
_MARKER = "recovery-unfinished"
"""A file in the directory that says that a recovery made it, so that the next one may remove it."""
_EPOCH_MAX = 2**31 - 1
"""Batches have 32 bits for it."""
_log = EventLogger("recovery")


class RecoveredShard(msgspec.Struct, frozen=True, kw_only=True):
    shard: str
    start_offset: int
    end_offset: int
    """Records from here on were not in the store and are lost; the next record gets this offset."""
    segment_count: int
    length_bytes: int
    newest_timestamp_ms: int | None
    last_upload_ms: int | None
    deleted_count: int
    """Records and keys that remain deleted."""
    aborted_transactions: list[int]
    """Producer ids of transactions that were open at the end, and were aborted."""
    doubtful_transactions: list[int]
    """Producer ids of transactions whose end is lost in a gap, and which count as aborted."""


class RecoveredTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    shards: list[RecoveredShard]


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What was recovered, and what was not."""

    url: str
    cluster: str
    data: str
    is_dry_run: bool
    topics: list[RecoveredTopic]
    gaps: list[Gap]
    """Lost offsets. The first of those at a shard's end is the next to be assigned."""
    passed_over: list[str]
    not_in_the_store: list[str]
    """State that an object store never holds."""
    groups: list[str] = []
    """Consumer groups whose committed offsets were recovered."""
    groups_written_ms: int | None = None
    """When those offsets were written; later commits are lost."""
    clamped_offsets: list[ClampedOffset] = []
    """Committed offsets beyond the recovered records: their groups continue at the shards' ends."""


_NEVER_THERE = [
    "records that were not in a sealed and uploaded segment: from each shard's end_offset on",
    "deletions of the last seconds before the loss",
    "offsets that groups committed in the last minute before the loss",
    "users and their passwords, which do not belong in a bucket: firn user add adds them again",
    "topics without tiering",
]


def recover_directory(
    path: Path,
    tiering: TieringConfig,
    *,
    dry_run: bool = False,
    skip_gaps: bool = False,
    clock: Clock | None = None,
    open_objects: Callable[[TieringConfig], ObjectStore] = existing_object_store,
    tell: Callable[[str], None] = lambda _: None,
) -> Recovery:
    """Creates a data directory with everything that the store has of a cluster.

    InvalidArgument if the path is not empty, GapsFound if there are gaps and `skip_gaps` is False.
    The cluster's objects belong to the new directory from then on: a node that owned them before
    and still runs stops tiering. `tell` is called with the present step.
    """
    clock = clock or SystemClock()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidArgument(
            "data", f"{path} is not empty; a recovery creates a new directory, choose another path"
        )
    store = open_objects(tiering)
    try:
        tell("looking for clusters")
        cluster = choose_cluster(store, tiering.cluster)
        tell(f"reading what the store has of cluster {cluster}")
        found = find_cluster(store, cluster, skip_gaps=skip_gaps)
        if not dry_run:
            tell(f"taking over {len(found.topics):,} topics")
            found = _build(path, cluster, store, clock, skip_gaps=skip_gaps)
        return _report(path, found, store.url, is_dry_run=dry_run)
    finally:
        store.close()


def _build(
    path: Path, cluster: str, store: ObjectStore, clock: Clock, *, skip_gaps: bool
) -> FoundCluster:
    """Claims the cluster first, then reads it: until the claim, a node that was thought lost may
    still upload and remove objects."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(unfinished)
    unfinished.mkdir()
    (unfinished / _MARKER).touch()
    try:
        found = _filled(unfinished, cluster, store, clock, skip_gaps=skip_gaps)
        sync_directory(unfinished)
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync_directory(path.parent)
    (path / _MARKER).unlink()
    _log.info("cluster_recovered", cluster=cluster, topics=len(found.topics))
    return found


def _clear(unfinished: Path) -> None:
    """Removes what a recovery left that was killed, and nothing else."""
    if (unfinished / _MARKER).is_file():
        shutil.rmtree(unfinished)
    elif unfinished.is_dir() and not any(unfinished.iterdir()):
        unfinished.rmdir()
    elif os.path.lexists(unfinished):
        raise InvalidArgument(
            "data", f"{unfinished} is in the way and is not of a recovery; move it or remove it"
        )


def _filled(
    unfinished: Path, cluster: str, store: ObjectStore, clock: Clock, *, skip_gaps: bool
) -> FoundCluster:
    local = LocalStore(unfinished, clock=clock, background=False)
    try:
        cluster_of(local.meta, cluster)
        Ownership(store, cluster, directory_id(local.meta), clock).take_over()
        found = find_cluster(store, cluster, skip_gaps=skip_gaps)
        _write(local, found)
    finally:
        local.close()
    _abort_open_transactions(unfinished, found, clock)
    return found


# Writing the directory ----------------------------------------------------------------------------


def _write(local: LocalStore, found: FoundCluster) -> None:
    """Writes all metadata and rows. Topics come last: without them the rest has no effect."""
    uid = 0
    highest_producer = -1
    for topic in found.topics:
        for shard in topic.shards:
            uid += 1
            _write_beside(local, uid, shard)
            _put(local, _shard_records(local, topic, shard, uid))
            highest_producer = max(
                highest_producer,
                *(producer_id for producer_id, _ in shard.producers),
                *(each.producer_id for each in shard.aborted),
                -1,
            )
    _put(local, {NEXT_UID: Counter(value=uid + 1)})
    _put(local, {topic_key(each.manifest.topic): _topic_record(each) for each in found.topics})
    ProducerIds(local.kv).skip_to(highest_producer + 1)
    for group, offsets in found.committed()[0].items():
        local.offsets.commit_entries(
            group, {shard: _committed_offset(entry) for shard, entry in offsets.items()}
        )


def _committed_offset(entry: StoredOffset) -> CommittedOffset:
    return CommittedOffset(
        offset=entry.offset,
        metadata=entry.metadata,
        committed_ms=entry.committed_ms,
        leader_epoch=entry.leader_epoch,
    )


def _put(local: LocalStore, records: Mapping[str, Record]) -> None:
    items = iter(records.items())
    while part := dict(islice(items, local.meta.txn_ops_max)):
        local.meta.txn([], {key: encode(record) for key, record in part.items()})


def _write_beside(local: LocalStore, uid: int, shard: FoundShard) -> None:
    """Writes a shard's rows in the key-value store: deletions, producers, aborted transactions.

    Deletions whose entries were lost with the end of the log get new ones when it is opened.
    """
    found, start = Deletion(shard.holes, shard.dead_keys), shard.start_offset
    if shard.has_lake:
        passed = found.below(start)
        with local.state.retired_deletions.adding(uid, passed.offsets, dict(passed.keys)):
            pass
    left = {at: each.above(start) for at, each in shard.deletions.items()}
    entries = {at: each for at, each in left.items() if any(each)}
    local.state.deletions.add_entries(uid, entries)
    lost = found.above(start).without(*folded(entries.values()))
    local.state.deletions.add_unlogged(uid, lost)
    rows = [(producer_key(uid, number), packed) for number, packed in shard.producers]
    rows += [(aborted_key(uid, each.last_offset), pack_aborted(each)) for each in shard.aborted]
    with local.kv.batch() as batch:
        batch.put_many(Family.INDEX, rows)
    local.kv.sync()


def _shard_records(
    local: LocalStore, topic: FoundTopic, shard: FoundShard, uid: int
) -> dict[str, Record]:
    active = shard.segments[-1].seq + 1 if shard.segments else 0
    place: dict[str, Any] = {
        "leader": local.node.node,
        "replicas": (local.node.node,),
        "isr": (Replica(local.node.node, local.node.incarnation),),
    }
    records: dict[str, Record] = {
        segment_key(shard.name, each.seq): _segment_record(topic, each, place)
        for each in shard.segments
    }
    for before, after in pairwise(shard.segments):
        if before.end_offset < after.base_offset:
            records[segment_key(shard.name, before.seq + 1)] = _gap_record(
                topic, before, after.base_offset, place
            )
    records[segment_key(shard.name, active)] = SegmentRecord(
        state=SegmentState.ACTIVE,
        epoch=0,
        start=shard.end_offset,
        created_ms=local.clock.now_ms(),
        **place,
    )
    records[shard_key(shard.name)] = ShardRecord(
        name=shard.name,
        uid=uid,
        active=active,
        epoch=min(shard.epoch + 1, _EPOCH_MAX),
        start=shard.start_offset,
        topic_id=topic.manifest.topic_id,
    )
    if shard.has_lake:  # The next sync records how far the table goes.
        records[lake_key(shard.name)] = LakeRecord(end=0, changed_ms=local.clock.now_ms())
    return records


def _medium(topic: FoundTopic) -> Medium:
    # Of a memory topic only spilled segments are in the store.
    is_memory = topic.manifest.options.get("storage.type") == StorageType.MEMORY.value
    return Medium.FILE if is_memory else Medium.NATIVE


def _gap_record(
    topic: FoundTopic, before: SegmentManifest, end_offset: int, place: dict[str, Any]
) -> SegmentRecord:
    """A segment without records in place of the lost ones, like those that compaction leaves.
    Retention drops it with the segment before it, and it is uploaded like any other."""
    return SegmentRecord(
        state=SegmentState.SEALED,
        epoch=1,
        start=before.end_offset,
        created_ms=before.created_ms,
        medium=_medium(topic),
        end=end_offset,
        max_timestamp=TIMESTAMP_MIN,
        sealed_ms=before.sealed_ms,
        first_expiry_ms=NEVER_MS,
        has_gaps=True,
        transactions=before.transactions,
        producers=before.producers,
        **place,
    )


def _segment_record(
    topic: FoundTopic, manifest: SegmentManifest, place: dict[str, Any]
) -> SegmentRecord:
    return SegmentRecord(
        state=SegmentState.TIERED,
        epoch=manifest.epoch + 2,
        start=manifest.base_offset,
        created_ms=manifest.created_ms,
        medium=_medium(topic),
        end=manifest.end_offset,
        length=manifest.length,
        crc=manifest.crc,
        max_timestamp=manifest.max_timestamp,
        sealed_ms=manifest.sealed_ms,
        first_expiry_ms=manifest.first_expiry_ms,
        compacted_ms=manifest.compacted_ms,
        has_gaps=manifest.has_gaps,
        tombstone_count=manifest.tombstone_count,
        transactions=manifest.transactions,
        producers=manifest.producers,
        tier=manifest.copy(),
        is_local=False,
        **place,
    )


def _topic_record(topic: FoundTopic) -> TopicRecord:
    return TopicRecord(
        name=topic.manifest.topic,
        topic_id=topic.manifest.topic_id,
        shard_count=topic.manifest.shard_count,
        options=topic.manifest.options,
        created_ms=topic.manifest.created_ms,
        state=TopicState.READY,
    )


def _abort_open_transactions(path: Path, found: FoundCluster, clock: Clock) -> None:
    """Aborts transactions whose end was not in the store: no producer will end them, and
    read_committed clients would stop there."""
    if not any(_open_transactions(found)):
        return
    local = LocalStore(path, clock=clock, background=False)
    try:
        for storage_type, shard, transaction in _open_transactions(found):
            engine = local.engines[storage_type]
            run_blocking(
                engine.append_marker(
                    shard.name, transaction.producer_id, transaction.epoch, is_commit=False
                )
            )
    finally:
        local.close()


def _open_transactions(
    found: FoundCluster,
) -> Iterator[tuple[str, FoundShard, OpenTransaction]]:
    for topic in found.topics:
        storage_type = topic.manifest.options.get("storage.type") or StorageType.SEGMENT.value
        for shard in topic.shards:
            for transaction in shard.open_transactions:
                yield storage_type, shard, transaction


# Telling ------------------------------------------------------------------------------------------


def _report(path: Path, found: FoundCluster, url: str, *, is_dry_run: bool) -> Recovery:
    groups, clamped = found.committed()
    return Recovery(
        url=url,
        cluster=found.cluster,
        data=str(path),
        is_dry_run=is_dry_run,
        topics=[
            RecoveredTopic(
                topic=topic.manifest.topic,
                topic_id=topic.manifest.topic_id,
                shards=[_shard_row(shard) for shard in topic.shards],
            )
            for topic in found.topics
        ],
        gaps=found.gaps(),
        passed_over=found.passed_over,
        not_in_the_store=_NEVER_THERE,
        groups=sorted(groups),
        groups_written_ms=None if found.groups is None else found.groups.written_ms,
        clamped_offsets=clamped,
    )


def _shard_row(shard: FoundShard) -> RecoveredShard:
    newest = max((each.max_timestamp for each in shard.segments), default=-1)
    return RecoveredShard(
        shard=shard.name,
        start_offset=shard.start_offset,
        end_offset=shard.end_offset,
        segment_count=len(shard.segments),
        length_bytes=sum(each.length for each in shard.segments),
        newest_timestamp_ms=newest if newest >= 0 else None,
        last_upload_ms=max((each.uploaded_ms for each in shard.segments), default=None),
        deleted_count=len(shard.holes) + len(shard.dead_keys),
        aborted_transactions=[each.producer_id for each in shard.open_transactions],
        doubtful_transactions=[each.producer_id for each in shard.doubtful],
    )
