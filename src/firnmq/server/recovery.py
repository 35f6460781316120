"""A new data directory out of an object store: `firn recover`.

It is made beside its place and moved there when it is whole, so that an interrupted recovery leaves
nothing that could be taken for one.
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
from firnmq.engines.segments import Medium, SegmentState
from firnmq.engines.shardlog.producers import pack_aborted
from firnmq.engines.transactions import OpenTransaction
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
from firnmq.server.identity import directory_id
from firnmq.server.local import LocalStore
from firnmq.server.tier import existing_object_store
from firnmq.tiering.manifest import SegmentManifest, StoredOffset
from firnmq.tiering.ownership import Ownership, cluster_of
from firnmq.tiering.recover import (
    ClampedOffset,
    FoundCluster,
    FoundShard,
    FoundTopic,
    Gap,
    choose_cluster,
    find_cluster,
)
from firnmq.tiering.stores import ObjectStore

_UNFINISHED = ".recovering"
_log = EventLogger("recovery")


class RecoveredShard(msgspec.Struct, frozen=True, kw_only=True):
    shard: str
    start_offset: int
    end_offset: int
    """Records from here on were not in the store: they are lost, and the next record gets it."""
    segment_count: int
    length_bytes: int
    newest_timestamp_ms: int | None
    last_upload_ms: int | None
    deleted_count: int
    """Records and keys that were deleted and stay so."""
    aborted_transactions: list[int]
    """Producer ids of transactions that were open at the end, and were aborted."""
    doubtful_transactions: list[int]
    """Producer ids of transactions whose end is lost in a gap, and which count as aborted."""


class RecoveredTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    shards: list[RecoveredShard]


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what was not."""

    url: str
    cluster: str
    data: str
    is_dry_run: bool
    topics: list[RecoveredTopic]
    gaps: list[Gap]
    """Offsets that are lost; of those at a shard's end, the first is the next to be given out."""
    passed_over: list[str]
    not_in_the_store: list[str]
    """What a store never holds."""
    groups: list[str] = []
    """Consumer groups that have their committed offsets again."""
    groups_written_ms: int | None = None
    """When those offsets were written; what was committed later is lost."""
    clamped_offsets: list[ClampedOffset] = []
    """Offsets beyond what was recovered: their groups go on where the shards end now."""


_NEVER_THERE = [
    "records that were not in a sealed and uploaded segment: from each shard's end_offset on",
    "deletions of the last seconds before the loss",
    "offsets that groups committed in the last minute before the loss",
    "users and their passwords, which do not belong in a bucket: firn user add makes them anew",
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
) -> Recovery:
    """Makes a data directory with all that the store has of a cluster.

    InvalidArgument if there is something at the path, GapsFound unless gaps are to be skipped. The
    cluster's objects belong to the new directory from then on: a node that had them before and is
    still there stops moving and removing.
    """
    clock = clock or SystemClock()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidArgument(
            "data", f"{path} is not empty; a recovery makes a directory anew, choose another place"
        )
    store = open_objects(tiering)
    try:
        cluster = choose_cluster(store, tiering.cluster)
        found = find_cluster(store, cluster, skip_gaps=skip_gaps)
        if not dry_run:
            found = _build(path, cluster, store, clock, skip_gaps=skip_gaps)
        return _report(path, found, store.url, is_dry_run=dry_run)
    finally:
        store.close()


def _build(
    path: Path, cluster: str, store: ObjectStore, clock: Clock, *, skip_gaps: bool
) -> FoundCluster:
    """The directory with what is there once it is ours: until then a node that was thought lost may
    go on uploading and removing."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    local = LocalStore(unfinished, clock=clock, background=False)
    try:
        cluster_of(local.meta, cluster)
        Ownership(store, cluster, directory_id(local.meta), clock).take_over()
        found = find_cluster(store, cluster, skip_gaps=skip_gaps)
        _write(local, found)
    finally:
        local.close()
    _abort_open_transactions(unfinished, found, clock)
    sync_directory(unfinished)
    os.rename(unfinished, path)
    sync_directory(path.parent)
    _log.info("cluster_recovered", cluster=cluster, topics=len(found.topics))
    return found


# Writing the directory ----------------------------------------------------------------------------


def _write(local: LocalStore, found: FoundCluster) -> None:
    """All metadata, and what is kept beside it. Topics come last: without them nothing counts."""
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
    """What the key-value store has of a shard: deletions, producers, aborted transactions."""
    start = shard.start_offset if shard.has_lake else 0
    for_table = [at for at in shard.holes if at < start]
    keys_for_table = {key: below for key, below in shard.dead_keys if below <= start}
    with local.state.retired_deletions.adding(uid, for_table, keys_for_table):
        pass
    if holes := [at for at in shard.holes if at >= start]:
        local.state.add_holes(uid, holes)
    for key, below in shard.dead_keys:
        if key not in keys_for_table:
            local.state.set_dead_key(uid, key, below)
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
        epoch=shard.epoch + 1,
        start=shard.start_offset,
        topic_id=topic.manifest.topic_id,
    )
    if shard.has_lake:  # How far it goes will be told by the next sync.
        records[lake_key(shard.name)] = LakeRecord(end=0, changed_ms=local.clock.now_ms())
    return records


def _medium(topic: FoundTopic) -> Medium:
    # Of a memory topic only what was spilled is in the store.
    is_memory = topic.manifest.options.get("storage.type") == StorageType.MEMORY.value
    return Medium.FILE if is_memory else Medium.NATIVE


def _gap_record(
    topic: FoundTopic, before: SegmentManifest, end_offset: int, place: dict[str, Any]
) -> SegmentRecord:
    """A segment without records in the place of those that are lost, as compaction leaves them. It
    goes with the one before it, and to the store like any other."""
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
    """Ends transactions whose end was not in the store: nobody else will, and until then clients
    that read what is committed would stop there."""
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
