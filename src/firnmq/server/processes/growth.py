"""The directory of a single node becomes that of several processes: the first one gets all it has.

The metadata stays where it is and becomes what the processes share; databases and segments are
renamed into the first process's directory. What decides is one transaction, before which the
directory is the single node's in every respect, and after which it is the first process's. Each
step can be repeated after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from firnmq.brokers.kafka.offsets import saved_groups
from firnmq.brokers.kafka.producer_ids import reserved_ids_end
from firnmq.brokers.kafka.transactions import saved_transactional_ids
from firnmq.brokers.security.users import KvUserRows
from firnmq.clock import Clock
from firnmq.cluster.nodes.coordinators import slot_of
from firnmq.disk import KeyValueStore, sync_directory
from firnmq.disk.private import PRIVATE_DIRECTORY
from firnmq.disk.reserve import RESERVE_NAME
from firnmq.engines.catalog.segments import SegmentState
from firnmq.engines.media.files.engine import SEGMENT_DIRECTORY, SHARED_DIRECTORY
from firnmq.errors import Corruption, InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.meta import Compare, MetaStore, SqliteMetaStore
from firnmq.meta.ranged import first_segment_of
from firnmq.meta.records import (
    CLUSTER,
    NEXT_PRODUCER_ID,
    NODES,
    RANGES,
    SEGMENTS,
    SHARDS,
    ClusterRecord,
    CoordinatorRecord,
    Counter,
    Incarnation,
    MemberRecord,
    RangeRecord,
    Record,
    Replica,
    SegmentRecord,
    ShardRecord,
    coordinator_key,
    decode,
    encode,
    incarnation_key,
    member_key,
    segment_key,
    shard_key,
)
from firnmq.nodefile import META_NAME
from firnmq.server.cluster_tier import kept_claim
from firnmq.server.identity import DirectoryRecord, check_directory, single_directory, write_down
from firnmq.server.local import DATABASE_DIRECTORY
from firnmq.server.processes.place import process_directory
from firnmq.server.tier import CACHE_DIRECTORY

_SECRET_BYTES = 32
_PART = 5_000
"""Records that one transaction changes; even, see `_out_of_ranges`."""
_MOVED = (
    *(DATABASE_DIRECTORY, SEGMENT_DIRECTORY, SHARED_DIRECTORY),
    *(CACHE_DIRECTORY, RESERVE_NAME),
)
_log = EventLogger("processes")


def check_growth(directory: Path, node: int) -> None:
    """InvalidArgument if the directory has what several processes cannot keep. Changes nothing."""
    if not (directory / DATABASE_DIRECTORY).is_dir():
        return
    with closing(SqliteMetaStore(directory / META_NAME)) as meta:
        if not single_directory(meta):
            return
        with closing(KeyValueStore(directory / DATABASE_DIRECTORY)) as kv:
            _, known = check_directory(directory, kv, meta)
        if known is not None and known.node != node:
            text = f"{directory} is node {known.node}'s; processes are numbered from it on"
            raise InvalidArgument("kafka.node_id", text)


def make_directories(directory: Path, count: int) -> None:
    """The processes' directories. They are there before anything else, so that from then on the
    directory is theirs, even if its growth is interrupted."""
    for process in range(1, count + 1):
        process_directory(directory, process).mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    sync_directory(directory)


def grow(directory: Path, node: int, cluster_id: str, clock: Clock) -> None:
    """Gives the first process what the directory has, if it is a single node's or was on its way.
    The caller has locked the directory."""
    if (directory / META_NAME).exists():
        with closing(SqliteMetaStore(directory / META_NAME)) as meta:
            if single_directory(meta):
                with closing(KeyValueStore(directory / DATABASE_DIRECTORY)) as kv:
                    _convert(directory, meta, kv, node, cluster_id, clock)
                _log.info("directory_grown", path=directory, first_node=node)
    _move(directory)


def _convert(
    directory: Path,
    meta: MetaStore,
    kv: KeyValueStore,
    node: int,
    cluster_id: str,
    clock: Clock,
) -> None:
    entry, _ = check_directory(directory, kv, meta)
    assert entry is not None
    for changes in (_out_of_ranges(meta, node), _led_by(meta, node)):
        for part in _parts(changes):
            meta.txn([Compare.unchanged(entry)], part)
    ranges = [each.key for each in meta.range(RANGES).entries]
    for at in range(0, len(ranges), _PART):  # Each of their shards has its own records now.
        meta.txn([Compare.unchanged(entry)], {}, ranges[at : at + _PART])
    identity = entry.value.decode()
    life = meta.get(incarnation_key(node))
    last = 0 if life is None else decode(life, Incarnation).incarnation
    # A start that a crash interrupted may have left the database one incarnation behind.
    write_down(kv, DirectoryRecord(identity, node, last))
    made_ms = clock.now_ms()
    puts: dict[str, Record] = {
        CLUSTER: ClusterRecord(
            cluster_id=cluster_id, secret=os.urandom(_SECRET_BYTES), made_ms=made_ms
        ),
        member_key(node): MemberRecord(node=node, directory_id=identity, joined_ms=made_ms),
        NEXT_PRODUCER_ID: Counter(value=reserved_ids_end(kv)),
    }
    for name in saved_groups(kv) | saved_transactional_ids(kv):
        puts[coordinator_key(slot_of(name))] = CoordinatorRecord(node=node)
    listed = [each.key for each in meta.range(NODES).entries]  # By the node that was alone.
    meta.txn(
        [Compare.unchanged(entry)],
        {key: encode(record) for key, record in puts.items()}
        | KvUserRows(kv).shared()
        | kept_claim(identity),
        [entry.key, *listed],
    )


def _out_of_ranges(meta: MetaStore, node: int) -> Iterator[tuple[str, bytes]]:
    """The records of shards that have none of their own, because they are kept as ranges. Those of
    one shard follow each other, and are in one part."""
    recorded = {entry.key for entry in meta.range(SHARDS).entries}
    for entry in meta.range(RANGES).entries:
        each = decode(entry, RangeRecord)
        segment = first_segment_of(each, Replica(node, 0))
        for seq in range(each.count):
            name = f"{each.topic_id}_{each.first_seq + seq}"
            if shard_key(name) in recorded:
                continue
            uid = each.first_uid + seq
            shard = ShardRecord(name=name, uid=uid, active=0, leader=node, topic_id=each.topic_id)
            yield shard_key(name), encode(shard)
            yield segment_key(name, 0), encode(segment)


def _led_by(meta: MetaStore, node: int) -> Iterator[tuple[str, bytes]]:
    """What has to change so that the node leads every shard and has every segment."""
    for entry in meta.range(SHARDS).entries:
        shard = decode(entry, ShardRecord)
        if shard.leader != node:
            yield entry.key, encode(msgspec.structs.replace(shard, leader=node))
    for entry in meta.range(SEGMENTS).entries:
        segment = decode(entry, SegmentRecord)
        if segment.state is SegmentState.DELETED or segment.holders in ((node,), ()):
            continue
        # It had another number then; what it held in memory is gone.
        changed = msgspec.structs.replace(
            segment, leader=node, replicas=(node,), isr=(Replica(node, 0),)
        )
        yield entry.key, encode(changed)


def _move(directory: Path) -> None:
    first = process_directory(directory, 1)
    for name in _MOVED:
        before, after = directory / name, first / name
        if not before.exists():
            continue
        if after.exists():
            raise Corruption(f"{name} is there twice, also in {first.name}", where=str(directory))
        before.rename(after)
    sync_directory(first)
    sync_directory(directory)


def _parts(changes: Iterable[tuple[str, bytes]]) -> Iterator[dict[str, bytes]]:
    left = iter(changes)
    while part := dict(islice(left, _PART)):
        yield part
