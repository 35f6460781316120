"""What must hold after every step, and what was promised to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from firnmq.cluster.replication.actions import Change
from firnmq.cluster.replication.values import (
    Acks,
    Crc,
    Incarnation,
    Member,
    NodeId,
    Point,
    RecordState,
    ReplicatedSegment,
    SegmentId,
)
from firnmq.ids import Offset, ShardUid
from tests.simulation.cluster.disk import Batch, Disk, Log

if TYPE_CHECKING:
    from tests.simulation.cluster.store import Store


class Violation(AssertionError):
    """An invariant does not hold. The seed in front of the run replays it."""


@dataclass(slots=True)
class Truth:
    """The one log of a segment: every end that any replica ever had."""

    start: Offset
    promised: Offset
    """Below: acknowledged with all or quorum, or shown to readers."""
    ends: dict[Offset, Crc] = field(default_factory=dict)
    batches: dict[Offset, Batch] = field(default_factory=dict)
    synced: dict[tuple[NodeId, Incarnation], Offset] = field(default_factory=dict)
    """How far each disk ever was, by the incarnation since which it had lost nothing."""
    appended_by: Member | None = None
    sealed: Point | None = None


class Judge:
    def __init__(self, min_in_sync: int) -> None:
        self.min_in_sync = min_in_sync
        self.truths: dict[SegmentId, Truth] = {}
        self.acknowledged: dict[Acks, int] = defaultdict(int)
        self.lossy_count = 0
        self.seal_count = 0
        self.is_loss_accepted = False
        """By the durability of the topic."""
        self.loss_accepted: set[SegmentId] = set()
        """By an operator."""
        self.intact: Callable[[ReplicatedSegment], set[NodeId]] = lambda record: set()
        """Replicas whose disks have lost nothing since they were listed."""
        self.sequences: set[tuple[ShardUid, int, int]] = set()

    def check(self, is_right: bool, text: str) -> None:
        if not is_right:
            raise Violation(text)

    def truth(self, record: ReplicatedSegment) -> Truth:
        found = self.truths.get(record.segment)
        if found is None:
            found = self.truths[record.segment] = Truth(record.start, promised=record.start)
        return found

    # Replicas are prefixes of one log

    def appended(self, record: ReplicatedSegment, by: Member, point: Point, batch: Batch) -> None:
        """A leader has staged a batch."""
        truth = self.truth(record)
        is_only = len(record.replicas) == 1
        first = truth.appended_by
        self.check(
            first is None or first == by or (is_only and first.node == by.node),
            f"{record.segment} was led by {first}, now also by {by}",
        )
        truth.appended_by = by
        if is_only:  # What the only replica lost without a promise may be written again.
            for end in [each for each in truth.ends if each > point.end - batch.count]:
                del truth.ends[end], truth.batches[end]
        self.stored(record.segment, point, batch, by)

    def stored(self, segment: SegmentId, point: Point, batch: Batch, by: Member) -> None:
        """A replica has a batch that ends at `point`."""
        truth = self.truths[segment]
        known = truth.ends.setdefault(point.end, point.crc)
        truth.batches.setdefault(point.end, batch)
        self.check(
            known == point.crc, f"{by} has other bytes of {segment} than the rest at {point.end}"
        )

    def durable(self, record: ReplicatedSegment, node: NodeId, disk: Disk) -> None:
        """A disk has synced everything that its log has."""
        log = disk.logs.get(record.segment)
        if log is not None and disk.made_in is not None:
            ends, key = self.truth(record).synced, (node, disk.made_in)
            ends[key] = max(ends.get(key, record.start), log.durable.end)

    def fenced_write(self, segment: SegmentId, log: Log, node: NodeId) -> None:
        self.check(log.fence == 0, f"fenced replica of {segment} on node {node} is appended to")

    def truncated(self, segment: SegmentId, node: NodeId, log: Log, end: Offset) -> None:
        sealed = self.truths[segment].sealed
        is_cut = log.durable.end <= end or (sealed is not None and sealed.end == end)
        self.check(is_cut, f"node {node} cuts {segment} to {end}, which is not its end")

    # Promises

    def shown(self, record: ReplicatedSegment, mark: Offset, by: Member) -> None:
        self._promise(record, mark, f"shown by {by}")

    def acked(
        self, record: ReplicatedSegment, acks: Acks, end: Offset, by: Member, is_alive: bool
    ) -> None:
        self.acknowledged[acks] += 1
        if acks is Acks.LEADER:
            self.check(is_alive, f"{by} acknowledges with 1 after its session has lapsed")
            return
        self._promise(record, end, f"acknowledged with {acks.value} by {by}")
        if acks is Acks.QUORUM:
            holders = {
                node
                for (node, made_in), durable in self.truth(record).synced.items()
                if durable >= end and record.counts(node, made_in)
            }
            self.check(
                len(holders) >= record.quorum or record.state is RecordState.SEALED,
                f"{by} acknowledges with quorum what {holders} have",
            )
        if acks is Acks.ALL:
            needed = record.needed_in_sync(self.min_in_sync)
            self.check(
                len(record.isr) >= needed or record.state is RecordState.SEALED,
                f"{by} acknowledges with all while {len(record.isr)} are in sync",
            )

    def _promise(self, record: ReplicatedSegment, end: Offset, how: str) -> None:
        truth = self.truth(record)
        if end <= truth.promised:
            return
        truth.promised = end
        self.check(end in truth.ends, f"{how}: {record.segment} has nothing that ends at {end}")
        sealed = truth.sealed
        self.check(
            sealed is None or end <= sealed.end or record.lossy,
            f"{how}: {end} of {record.segment}, which is sealed at {sealed}",
        )

    # The record

    def changed(self, now: ReplicatedSegment, change: Change) -> None:
        after = change.after
        self.check(now == change.before, f"{now.segment}: a change from another record")
        self.check(now.state is not RecordState.SEALED, f"{now.segment} is sealed and changed")
        self.check(after.fence >= now.fence, f"{now.segment}: the fence goes back")
        needed = now.needed_in_sync(self.min_in_sync)
        if after.state is RecordState.ACTIVE:
            self.check(
                len(after.isr) >= min(needed, len(now.isr)),
                f"{now.segment}: {len(after.isr)} are left in sync, {needed} are needed",
            )
        if after.state is RecordState.SEALED:
            self._sealed(after, needed)
            if after.lossy:
                self._lossy(now)
        opened = change.opened
        self.check(
            (opened is None) == (after.state is not RecordState.SEALED)
            and (opened is None or opened.start == after.end),
            f"{now.segment}: ranges do not tile the shard",
        )

    def _sealed(self, record: ReplicatedSegment, needed: int) -> None:
        truth, at = self.truth(record), record.sealed_at
        self.seal_count += 1
        self.lossy_count += record.lossy
        self.check(truth.sealed is None, f"{record.segment} is sealed twice")
        truth.sealed = at
        is_known = at.end == truth.start or truth.ends.get(at.end) == at.crc
        self.check(is_known, f"{record.segment} is sealed at {at}, which no replica had")
        self.check(
            at.end >= truth.promised or record.lossy,
            f"{record.segment} is sealed at {at.end}, promised was {truth.promised}",
        )
        self.check(len(record.isr) >= needed, f"{record.segment}: {record.isr} have all of it")
        for end in sorted(truth.batches):
            batch = truth.batches[end]
            if end <= at.end and batch.sequence >= 0:
                name = (record.segment.shard, batch.producer, batch.sequence)
                self.check(name not in self.sequences, f"{name} is in the log twice")
                self.sequences.add(name)

    def _lossy(self, record: ReplicatedSegment) -> None:
        """A loss is accepted, and not avoidable: too few replicas have kept everything."""
        self.check(
            self.is_loss_accepted or record.segment in self.loss_accepted,
            f"{record.segment}: the loss is not accepted",
        )
        intact = self.intact(record)
        in_sync = [member for member in record.isr if member.node in intact]
        is_avoidable = bool(in_sync) and len(intact) >= record.fence_answer_min
        self.check(not is_avoidable, f"{record.segment}: {sorted(intact)} have kept everything")

    def sealed_batches(self, shard: ShardUid, producer: int) -> dict[int, Offset]:
        """The producer's snapshot that travels with sealed segments: sequence to end."""
        return {
            batch.sequence: end
            for segment, truth in self.truths.items()
            if segment.shard == shard and truth.sealed is not None
            for end, batch in truth.batches.items()
            if batch.producer == producer and batch.sequence >= 0 and end <= truth.sealed.end
        }

    # All of it, after every step

    def step(
        self,
        store: Store,
        segments: Iterable[SegmentId],
        disks: Mapping[NodeId, Disk],
        marks: Mapping[SegmentId, Offset],
    ) -> None:
        """In-sync replicas have what is shown; verified ones have all that is sealed."""
        for segment in segments:
            record = store.records.get(segment)
            if record is None:
                continue
            mark = marks.get(segment, record.start)
            if record.state is RecordState.SEALED:
                assert record.end is not None
                mark = record.end
            for member in record.isr:
                disk = disks[member.node]
                if disk.incarnation != member.incarnation:
                    continue
                log = disk.logs.get(segment)
                end = log.durable.end if log is not None else record.start
                if end < mark:
                    raise Violation(f"{member} in the ISR of {segment} has {end}, shown is {mark}")
