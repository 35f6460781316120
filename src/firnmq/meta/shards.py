"""Shards and their segment chains in the meta store: the engines' ShardCatalog.

Every change is one transaction. It names the epoch that it read of each segment it changes, and
contains the guard that this node has not been registered again. Reads on which a change depends go
to the store, not to the cache.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from firnmq.clock import Clock
from firnmq.config import TopicConfig
from firnmq.engines.catalog.ranges import ShardRange, ShardUids
from firnmq.engines.catalog.segments import (
    IllegalTransition,
    SegmentMeta,
    SegmentState,
    Successor,
    medium_of_new,
)
from firnmq.engines.catalog.state import ShardSpec
from firnmq.errors import (
    AlreadyExists,
    FirnError,
    InvalidArgument,
    NotLeader,
    StaleEpoch,
    StorageFailed,
)
from firnmq.eventlog import EventLogger
from firnmq.meta.api import Compare, Entry, Event, MetaStore, TxnConflict
from firnmq.meta.cache import MetaCache
from firnmq.meta.conversions import deleted_record, meta_of, sealed_record
from firnmq.meta.graves import Graves, grave_key, grave_of
from firnmq.meta.lake_ends import LakeEnds
from firnmq.meta.nodes import NodeIdentity
from firnmq.meta.ranged import RangedStore
from firnmq.meta.records import (
    NEXT_UID,
    SEGMENTS,
    SHARDS,
    TOPICS,
    Counter,
    GraveRecord,
    Record,
    Replica,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    config_of,
    decode,
    encode,
    lake_key,
    segment_key,
    segment_seq_of,
    shard_key,
    shard_of_segment,
)
from firnmq.meta.shard_records import ShardRecords, leads_alone

T = TypeVar("T")
_log = EventLogger("meta")

SHARDS_WAIT_S = 3.0
"""How long new shards may take to appear in the node's cache."""
_ENTRIES_PER_SHARD = 2
_ENTRIES_PER_TXN = 2
"""Operations beside the shards: the counter; the node's guard and the topic among the compares."""
_ENTRIES_PER_REMOVAL = 2
"""A segment's record is deleted, and the grave of its copy is put."""
_COPIED = b"upload_id"
"""Only the record of a segment with a copy contains this field name."""


class MetaShards(ShardRecords):
    """A ShardCatalog of the engines. Safe with threads."""

    def __init__(
        self,
        store: MetaStore,
        cache: MetaCache,
        node: NodeIdentity,
        clock: Clock,
        *,
        wait_s: float = SHARDS_WAIT_S,
        is_shared: bool = False,
    ) -> None:
        """`is_shared`: other nodes have shards in the store as well. `shards` are those that this
        node leads."""
        super().__init__(RangedStore(store, cache, node), node)
        self._is_shared = is_shared
        self._seen_by = node.node if is_shared else None
        self._cache = cache
        self._clock = clock
        self.wait_s = wait_s
        self._adding = threading.Lock()
        graves = Graves(self._store, self._txn)
        self.graves = graves.all
        self.forget_graves = graves.forget
        lake = LakeEnds(self._store, node, clock, self._name, self._judge)
        self.lake_end = lake.lake_end
        self.has_lake = lake.has_lake
        self.move_lake_end = lake.move_lake_end
        self._names = {
            record.uid: record.name
            for record in (decode(entry, ShardRecord) for entry in cache.below(SHARDS))
            if not self._store.note_recorded(record.name)
        }
        if is_shared:
            cache.listen(SHARDS, self._follow)

    def _follow(self, events: list[Event]) -> None:
        """Learns the numbers of shards that other nodes have added."""
        for event in events:
            if event.entry is not None:
                record = decode(event.entry, ShardRecord)
                self._names[record.uid] = record.name

    # Shards -------------------------------------------------------------------------------------

    def add_shards(
        self,
        names: Sequence[str],
        config: TopicConfig,
        topic_id: str | None = None,
        *,
        replicas: Mapping[str, tuple[Replica, ...]] | None = None,
        topic: Callable[[], Compare] | None = None,
    ) -> list[ShardSpec]:
        """Registers shards with their first segments, under numbers that were never used.

        `replicas` are the nodes of the shards, by name, of which the first one leads; by default
        all are this node's. `topic`
        reads what every transaction compares: that the topic is still there. It is called again
        when the topic has changed.

        Returns when the node's cache has them; raises TimedOut if it does not in time. A
        transaction holds as many shards as fit. If a later transaction fails, the caller removes
        the shards of the earlier ones.
        """
        for name in names:
            if "/" in name:
                raise InvalidArgument("shard", f"{name!r} has a slash")
        per_txn = self._store.txn_ops_max // _ENTRIES_PER_SHARD - _ENTRIES_PER_TXN
        specs: list[ShardSpec] = []
        revision = 0
        with self._adding:
            for part in _parts(names, per_txn):
                revision, added = self._add(part, config, topic_id, replicas, topic)
                specs += added
        self._cache.wait_for_revision(revision, self.wait_s)
        return specs

    def _add(
        self,
        names: list[str],
        config: TopicConfig,
        topic_id: str | None,
        replicas: Mapping[str, tuple[Replica, ...]] | None,
        topic: Callable[[], Compare] | None,
    ) -> tuple[int, list[ShardSpec]]:
        options = None if topic_id is not None else config.options()
        first = SegmentMeta(
            seq=0, base_offset=0, created_ms=self._now(), medium=medium_of_new(config)
        )
        own_segment = encode(self._active(first))
        while True:
            counter = self._store.get(NEXT_UID)
            uid = 1 if counter is None else decode(counter, Counter).value
            compares = [
                self._node.guard,
                Compare.absent(NEXT_UID) if counter is None else Compare.unchanged(counter),
            ]
            again = {NEXT_UID}
            """Keys that others change as well: what depends on them is made again."""
            if topic is not None:
                compares.append(topic())
                again.add(compares[-1].key)
            puts = {NEXT_UID: encode(Counter(value=uid + len(names)))}
            specs = []
            for name in names:
                key = shard_key(name)
                compares.append(Compare.absent(key))
                placed = () if replicas is None else replicas[name]
                record = ShardRecord(
                    name=name,
                    uid=uid,
                    active=0,
                    leader=placed[0].node if placed else 0,
                    topic_id=topic_id,
                    options=options,
                )
                puts[key] = encode(record)
                puts[segment_key(name, 0)] = (
                    encode(self._active(first, placed)) if placed else own_segment
                )
                specs.append(ShardSpec(name=name, uid=uid, config=config))
                uid += 1
            try:
                revision = self._store.txn(compares, puts)
            except TxnConflict as conflict:
                if conflict.compare.key in again:
                    continue
                self._judge(conflict)
                raise AlreadyExists("shard", conflict.compare.key.removeprefix(SHARDS)) from None
            self._names.update((spec.uid, spec.name) for spec in specs)
            return revision, specs

    def add_range(
        self, topic_id: str, seqs: range, config: TopicConfig
    ) -> tuple[ShardRange, ...] | None:
        """Registers a topic's shards with these seqs as one record. None if that is not possible:
        other nodes may lead some of them, or they do not share files."""
        if self._is_shared or not config.shares_files:
            return None
        return self.add_ranges([(topic_id, seqs)], config)

    def add_ranges(
        self, wanted: Sequence[tuple[str, range]], config: TopicConfig
    ) -> tuple[ShardRange, ...]:
        """The same for shards of several topics, in as few transactions as possible."""
        added: list[ShardRange] = []
        with self._adding:
            for part in _parts(wanted, self._store.txn_ops_max - _ENTRIES_PER_TXN):
                try:
                    revision, ranges = self._store.add(part, medium_of_new(config), self._now())
                except TxnConflict as conflict:
                    self._judge(conflict)
                    raise AlreadyExists("shard", conflict.compare.key) from None
                added += ranges
            self._cache.wait_for_revision(revision, self.wait_s)
            for each in added:
                self._store.ranges.add(each)
        return tuple(added)

    def reconfigure(self, spec: ShardSpec) -> None:
        """Changes the options of a shard without a topic; other shards have their topic's."""
        entry, shard = self._shard(spec.uid)
        if shard.topic_id is None:
            changed = msgspec.structs.replace(shard, options=spec.config.options())
            self._txn([Compare.unchanged(entry)], {entry.key: changed})

    def ranges(self) -> list[tuple[ShardRange, TopicConfig]]:
        """The ranges of shards in the node's cache, with the options of their topics."""
        configs = self._configs()
        found = []
        for each in self._store.ranges:
            if each.topic_id in configs:
                found.append((each, configs[each.topic_id]))
            else:
                _log.error("shards_without_topic", topic_id=each.topic_id, count=each.count)
        return found

    def _configs(self) -> dict[str, TopicConfig]:
        topics = (decode(entry, TopicRecord) for entry in self._cache.below(TOPICS))
        return {topic.topic_id: topic.config() for topic in topics}

    def uids(self) -> ShardUids:
        """The numbers of all shards, also of those of a range whose topic is not there."""
        return ShardUids(self.kept_here().values(), self._store.ranges)

    def has_records(self, uid: int) -> bool:
        """Whether a shard may have records of its own."""
        return self._store.has_records(uid)

    def recorded_uids(self, shards: ShardRange) -> list[int]:
        """Those of a range that may have records of their own."""
        return self._store.recorded(shards)

    def shards(self) -> list[ShardSpec]:
        """All shards in the node's cache that are in no range, or in a cluster those that this node
        leads as the only replica; those of a topic share its options."""
        configs = self._configs()
        found = []
        for entry in self._cache.below(SHARDS):
            if self._store.ranges.find(entry.key.removeprefix(SHARDS)) is not None:
                continue
            record = decode(entry, ShardRecord)
            if self._is_shared and not leads_alone(self._cache, record, self._node.node):
                continue
            if record.topic_id is None:
                config = config_of(record.options or {}, entry.key)
            elif record.topic_id in configs:
                config = configs[record.topic_id]
            else:
                _log.error("shard_without_topic", shard=record.name, topic_id=record.topic_id)
                continue
            found.append(
                ShardSpec(name=record.name, uid=record.uid, config=config, epoch=record.epoch)
            )
        return found

    def has_here(self, record: SegmentRecord) -> bool:
        """Whether this node has a segment's bytes."""
        return record.is_local if self._seen_by is None else self._seen_by in record.holders

    def kept_here(self) -> dict[str, int]:
        """The numbers, by name, of shards that this node leads or holds segments of."""
        kept = {spec.name: spec.uid for spec in self.shards()}
        if self._is_shared:
            held = {
                shard_of_segment(entry.key)
                for entry in self._cache.below(SEGMENTS)
                if self._node.node in decode(entry, SegmentRecord).holders
            }
            for name in held:
                entry = self._cache.get(shard_key(name))
                if entry is not None:
                    kept[name] = decode(entry, ShardRecord).uid
        return kept

    def remove_shards(self, names: Iterable[str], compares: Sequence[Compare] = ()) -> None:
        """Deletes the records of shards and their segments; ignores missing ones. StaleEpoch, with
        nothing more removed, once one of the compares fails.

        The same transaction records graves for the segments' copies in the object store.
        """
        keys = []
        uids = []
        graves: dict[str, GraveRecord] = {}
        of_ranges, others = self._store.ranges.split(names)
        for each, gone in of_ranges.items():
            parts = (each.part(seqs.start, seqs.stop) for seqs in gone)
            others += [each.name_of(uid) for part in parts for uid in self._store.recorded(part)]
        for name in others:
            for entry in self._segments(name):
                keys.append(entry.key)
                if _COPIED in entry.value:  # Other records are not decoded: they may be damaged.
                    record = decode(entry, SegmentRecord)
                    if record.tier is not None:
                        graves[entry.key] = grave_of(name, entry.key, record, self._now())
            if self._store.get(lake_key(name)) is not None:
                keys.append(lake_key(name))
            shard_entry = self._store.get(shard_key(name))
            if shard_entry is not None:
                # Last, so that a removal can be repeated after a crash.
                keys.append(shard_entry.key)
                uids.append(decode(shard_entry, ShardRecord).uid)
        for part in _parts(keys, self._store.txn_ops_max // _ENTRIES_PER_REMOVAL):
            buried = {grave_key(key): graves[key] for key in part if key in graves}
            self._txn(compares, buried, part)
        for uid in uids:
            self._names.pop(uid, None)
        for each, gone in of_ranges.items():
            puts, deletes = self._store.shrinking(each, gone)
            self._txn(compares, puts, deletes)
            self._store.shrink(each, gone)

    # Segment chains -----------------------------------------------------------------------------

    def chain(self, uid: int) -> list[SegmentMeta]:
        """The shard's segments in order, including those whose bytes are being removed."""
        return [self._meta_of(entry) for entry in self._segments(self._name(uid))]

    def segment(self, uid: int, seq: int) -> SegmentMeta | None:
        """One segment, read from the store."""
        entry = self._store.get(segment_key(self._name(uid), seq))
        return None if entry is None else self._meta_of(entry)

    def producers(self, uid: int, seq: int) -> tuple[tuple[int, bytes], ...]:
        """Idempotent producers at the end of a segment that an earlier version has sealed."""
        return decode(self._segment(self._name(uid), seq), SegmentRecord).producers

    def active_seq(self, uid: int) -> int:
        return self._shard(uid)[1].active

    @property
    def own_holders(self) -> tuple[int, ...]:
        """The holders of a segment that this node alone has; none where the node is alone."""
        return () if self._seen_by is None else (self._seen_by,)

    def not_led(self, uid: int) -> NotLeader:
        """The error for what only the shard's leader does, which another node is."""
        _, shard = self._shard(uid)
        leader = None if shard.leader == self._node.node else shard.leader
        return NotLeader(shard.name, self._node.node, leader)

    def roll(
        self,
        uid: int,
        sealed: SegmentMeta,
        active: SegmentMeta,
        successor: Successor | None = None,
    ) -> SegmentMeta:
        """Seals the active segment and activates the next one, in one transaction. A successor
        leads it under the shard's next epoch. An empty segment is not sealed: its record goes."""
        name = self._name(uid)
        entry, segment = self._held(name, sealed.seq, sealed.epoch - 1, SegmentState.ACTIVE)
        shard_entry, shard = self._shard(uid)
        if shard.active != sealed.seq or active.base_offset != sealed.end_offset:
            raise StaleEpoch(f"{name}/{sealed.seq}", sealed.epoch - 1, segment.epoch)
        following = msgspec.structs.replace(shard, active=active.seq)
        leader = None
        if successor is not None:
            leader = Replica(successor.node, successor.incarnation)
            following = msgspec.structs.replace(
                following, leader=leader.node, epoch=shard.epoch + 1
            )
            active = dataclasses.replace(active, leader_epoch=following.epoch)
        record = self._active(active, () if leader is None else (leader,))
        puts: dict[str, Record] = {
            segment_key(name, active.seq): record,
            shard_entry.key: following,
        }
        deletes = [entry.key] if sealed.length == 0 else []
        if sealed.length:
            puts[entry.key] = sealed_record(segment, sealed)
        self._txn([Compare.unchanged(entry), Compare.unchanged(shard_entry)], puts, deletes)
        return meta_of(active.seq, record, self._seen_by)

    def replace_sealed(self, uid: int, new: SegmentMeta, merged: Sequence[SegmentMeta]) -> None:
        """Replaces a sealed segment and those after it, which were merged into it, by one segment
        for the same offsets, in one transaction.

        StaleEpoch if a concurrent change of any of them won.
        """
        name = self._name(uid)
        entry, segment = self._held(name, new.seq, new.epoch - 1, SegmentState.SEALED)
        others = [self._held(name, each.seq, each.epoch, SegmentState.SEALED) for each in merged]
        last = others[-1][1] if others else segment
        bounds = (segment.start, last.end)
        if (new.base_offset, new.end_offset) != bounds or new.state is not SegmentState.SEALED:
            raise IllegalTransition(f"segment {new.seq} cannot become another segment")
        changed = sealed_record(segment, new, last.producers)
        if self._is_shared and new.slot != segment.slot:  # It was rewritten here.
            own = self._node.replica
            changed = msgspec.structs.replace(changed, replicas=(own.node,), isr=(own,))
        puts: dict[str, Record] = {entry.key: changed}
        puts.update((other.key, deleted_record(record)) for other, record in others)
        compared = (entry, *(other for other, _ in others))
        self._txn([Compare.unchanged(each) for each in compared], puts)

    # Copies in the object store -----------------------------------------------------------------

    def change_copy(self, uid: int, new: SegmentMeta) -> None:
        """Changes the copy or the location of a sealed segment, in one transaction.

        StaleEpoch if a concurrent change won.
        """
        name = self._name(uid)
        entry, segment = self._held(
            name, new.seq, new.epoch - 1, SegmentState.SEALED, SegmentState.TIERED
        )
        is_held = new.is_local or bool(new.holders)
        changed = msgspec.structs.replace(
            segment,
            state=new.state,
            epoch=new.epoch,
            tier=new.tier,
            is_local=is_held,
            replicas=segment.replicas if is_held else (),
        )
        self._txn([Compare.unchanged(entry)], {entry.key: changed})

    def dead_copies(self) -> list[tuple[str, SegmentMeta]]:
        """Deleted segments in the node's cache that may still have objects."""
        found = []
        for entry in self._cache.below(SEGMENTS):
            if _COPIED not in entry.value:
                continue
            meta = self._meta_of(entry)
            if meta.state is SegmentState.DELETED and meta.tier is not None:
                found.append((shard_of_segment(entry.key), meta))
        return found

    def forget_copy(self, uid: int, seq: int) -> None:
        """Removes the record of a deleted segment whose objects are gone; ignores a missing
        record."""
        name = self._name(uid)
        entry = self._store.get(segment_key(name, seq))
        if entry is None:
            return
        record = decode(entry, SegmentRecord)
        if record.state is not SegmentState.DELETED:
            raise StaleEpoch(f"{name}/{seq}", -1, record.epoch)
        self._txn([Compare.unchanged(entry)], {}, [entry.key])

    def begin_again(self, uid: int, active: SegmentMeta) -> SegmentMeta:
        """Makes this the active segment, in the memory of this incarnation of the node.

        The previous active segment was lost with the process that held it in memory.
        """
        name = self._name(uid)
        shard_entry, shard = self._shard(uid)
        key = segment_key(name, active.seq)
        old = self._store.get(segment_key(name, shard.active))
        compares = [Compare.unchanged(shard_entry)]
        deletes = []
        if old is not None:
            compares.append(Compare.unchanged(old))
            if old.key == key:
                epoch = decode(old, SegmentRecord).epoch + 1
                active = dataclasses.replace(active, epoch=epoch)
            elif decode(old, SegmentRecord).state is SegmentState.ACTIVE:
                deletes.append(old.key)
        changed = msgspec.structs.replace(shard, active=active.seq)
        self._txn(compares, {key: self._active(active), shard_entry.key: changed}, deletes)
        return active

    def is_held_here(self, uid: int) -> bool:
        """Whether the active segment belongs to this incarnation of the node."""
        name = self._name(uid)
        entry = self._segment(name, self._shard(uid)[1].active)
        return self._node.replica in decode(entry, SegmentRecord).isr

    # Bounds -------------------------------------------------------------------------------------

    def start_offset(self, uid: int) -> int:
        return self._shard(uid)[1].start

    def move_start(
        self,
        uid: int,
        start_offset: int,
        deleted: Sequence[SegmentMeta],
        active: SegmentMeta | None = None,
    ) -> None:
        """Moves the start and marks the segments below it deleted, in one transaction.

        `active` is where a memory shard continues, if its active segment is dropped too.
        """
        name = self._name(uid)
        entry, shard = self._shard(uid)
        compares = [Compare.unchanged(entry)]
        puts: dict[str, Record] = {}
        deletes = []
        for meta in deleted:
            held, segment = self._held(name, meta.seq, meta.epoch, meta.state)
            compares.append(Compare.unchanged(held))
            puts[held.key] = deleted_record(segment)
        if active is not None and active.seq != shard.active:
            deletes.append(segment_key(name, shard.active))
            puts[segment_key(name, active.seq)] = self._active(active)
            shard = msgspec.structs.replace(shard, active=active.seq)
        puts = {entry.key: msgspec.structs.replace(shard, start=start_offset), **puts}
        # If they do not fit one transaction, the first one moves the start. After a crash, the next
        # round of retention drops the segments below it that are still sealed.
        limit = self._store.txn_ops_max - len(deletes) - 1
        has_begun = False
        while puts:
            try:
                self._txn(compares[:limit], dict(islice(puts.items(), limit)), deletes)
            except (StorageFailed, StaleEpoch) as error:
                if has_begun:
                    raise _in_part(name, error) from error
                raise
            puts, deletes = dict(islice(puts.items(), limit, None)), []
            compares = compares[limit:]
            has_begun = True

    def forget_segments(self, uid: int, seqs: Sequence[int]) -> None:
        """Removes the records of dropped segments."""
        name = self._name(uid)
        for part in _parts([segment_key(name, seq) for seq in seqs], self._store.txn_ops_max):
            self._txn([], {}, part)

    def _meta_of(self, entry: Entry) -> SegmentMeta:
        return meta_of(segment_seq_of(entry.key), decode(entry, SegmentRecord), self._seen_by)

    def _active(self, meta: SegmentMeta, replicas: tuple[Replica, ...] = ()) -> SegmentRecord:
        """`replicas`: by default this node alone; the first one leads."""
        replicas = replicas or (self._node.replica,)
        return SegmentRecord(
            state=SegmentState.ACTIVE,
            epoch=meta.epoch,
            leader=replicas[0].node,
            replicas=tuple(each.node for each in replicas),
            isr=replicas,
            opened=replicas if len(replicas) > 1 else (),
            start=meta.base_offset,
            created_ms=meta.created_ms,
            leader_epoch=meta.leader_epoch,
            medium=meta.medium,
        )

    def _now(self) -> int:
        return self._clock.now_ms()


def _in_part(name: str, error: FirnError) -> StorageFailed:
    """A change that needs several transactions failed after the first."""
    failure = StorageFailed(name, error.cause if isinstance(error, StorageFailed) else error)
    failure.is_outcome_unknown = True
    return failure


def _parts(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for at in range(0, len(items), size):
        yield list(items[at : at + size])
