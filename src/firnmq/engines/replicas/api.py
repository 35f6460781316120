"""What the driver of replication calls, and what it is told.

A shard with more than one replica has at most one log here, which leads or follows. Its tail is the
replica that a `ReplicaId` names: the shard's active segment, or a sealed one that is not complete
here yet. Every call that changes a replica goes through the lane of its shard, in the order of the
calls; one turn of a worker is one sync, however many shards it is about.

Threads: `open`, `read` and `log_of` may wait for a disk. Everything else returns at once. A
listener and a `Done` are called by a worker, or by the thread that a call is made in, with locks
held: they take a note and hand it to the driver's own thread. They must not call back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.api import Acks
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.errors import FirnError, ShardError

if TYPE_CHECKING:
    from firnmq.engines.shardlog import ShardLog
    from firnmq.engines.shardlog.append import PreparedBatch
    from firnmq.engines.shardlog.rolling.steps import Seal


class ReplicaId(NamedTuple):
    """One segment of one shard, on this node."""

    uid: int
    seq: int


class ReplicaEnd(NamedTuple):
    """An end of a segment's bytes."""

    offset: int
    """Of the next record."""
    crc: int
    """CRC32C of everything below it in the segment, chained from batch to batch."""


class SealFacts(NamedTuple):
    """What the record of a sealed segment says beside its end and CRC. Another node may carry it
    without knowing what it means."""

    length: int
    max_timestamp: int
    first_expiry_ms: int
    transactions: tuple[OpenTransaction, ...]


class Reached(NamedTuple):
    """How far a replica is durable here."""

    end: ReplicaEnd
    facts: SealFacts
    """Of the segment, if it were sealed at this end."""
    fence: int = 0
    """The one on disk; 0 while the segment was never fenced."""


class Checked(NamedTuple):
    """Batches from another node, found good: see `check_batches`."""

    start: ReplicaEnd
    end: ReplicaEnd
    batches: tuple[PreparedBatch, ...]
    size_bytes: int


class ReplicaBytes(NamedTuple):
    """Whole batches as they are stored."""

    buffers: tuple[Buffer | FileRange, ...]
    next_offset: int
    """Where they end."""
    size_bytes: int


class ReplicaFailed(ShardError):
    """The node has no such replica now, or it is not in a state for the call: nothing was done."""

    def __init__(self, shard: str, reason: str) -> None:
        super().__init__("", shard, f" has no such replica here: {reason}")
        self.reason = reason


Done: TypeAlias = "Callable[[Reached | FirnError], None]"
"""Called once with the outcome of a call."""


class ReplicaListener(Protocol):
    """The driver, as logs see it."""

    def staged(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        """Logs that lead have grown: followers may fetch up to here, though the disk need not have
        it. Called once in a turn, after the writes and before the syncs."""

    def durable(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        """Logs that lead or follow are durable up to here. Called once, at the end of a turn."""

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        """The log has closed itself: nothing more comes of it until it is opened again."""

    def refusal(self, replica: ReplicaId, acks: Acks) -> FirnError | None:
        """Why the log that leads must not take an append now; None if it may. Asked once for each
        append, by the thread that submits it and again by the worker before it is stored."""

    def seal(self, replica: ReplicaId, seal: Seal) -> Seal:
        """Has a frozen segment sealed that leads here and is full or old, and whose high watermark
        is at its end. Called by a thread of its own, which waits for it.

        Returns what the metadata have once the next segment is led here as well: the log goes on
        with it by itself, and `install` is not called. Raises TimedOut if nothing has changed:
        appends go on. Raises NotLeader if the next segment is led elsewhere; then `stop_leading`
        was called, and the replica goes on as every other.
        """


class Replicas(Protocol):
    """The replicas of a node. Safe with threads."""

    # A life of a log -----------------------------------------------------------------------------

    def open(self, spec: ShardSpec, meta: SegmentMeta, *, leads: bool) -> Reached:
        """Opens the log of a shard whose tail is the segment of `meta`, from what the disk has, or
        empty. Also after `failed`, and then nothing that was reported as durable is gone.

        What the metadata have behind that segment is not looked at. `meta` may be sealed: then the
        replica is one to be truncated and completed. Only a new segment may be led. Nothing above
        the high watermark that this node had been told is shown.
        """

    def close(self, uid: int, refusal: FirnError) -> None:
        """Lets go of a shard's log; its bytes stay. Its callers are told the refusal."""

    def stop_leading(self, replica: ReplicaId, refusal: FirnError) -> None:
        """The log takes no appends any more, and fails those that wait, whose outcome is unknown.
        What is shown can still be read until the shard's next log is there."""

    def install(
        self, sealed: SegmentMeta, active: SegmentMeta, spec: ShardSpec, *, leads: bool, done: Done
    ) -> None:
        """The metadata have the tail's segment sealed at its end here, and the next one open, which
        has a replica here. The log, which follows, goes on with that as leader or follower. `done`
        gets the new tail's beginning.

        ReplicaFailed if the replica does not end where the sealed one does, with the same CRC.
        """

    def seal_last(self, sealed: SegmentMeta, spec: ShardSpec, *, done: Done) -> None:
        """The same where the next segment has no replica here: the log is closed, the segment can
        be read with `read`."""

    # Following -----------------------------------------------------------------------------------

    def stage(self, replica: ReplicaId, checked: Checked, high_watermark: int, done: Done) -> None:
        """Appends batches as they are behind the replica's end. The listener is told `durable` as
        well, unless `done` gets an error."""

    def advance(self, replica: ReplicaId, high_watermark: int) -> None:
        """Moves the high watermark. Where the log leads, everything below it is shown and the
        appends with Acks.ALL below it are complete."""

    def advance_quorum(self, replica: ReplicaId, mark: int) -> None:
        """The log leads: appends with Acks.QUORUM below the mark are complete."""

    # Fences, truncation --------------------------------------------------------------------------

    def persist_fence(self, shard: str, replica: ReplicaId, fence: int, done: Done) -> None:
        """Makes a fence durable, behind everything that was staged before. A lower one than the
        present changes nothing. The segment need not be here."""

    def fence_of(self, replica: ReplicaId) -> int:
        """The fence on disk, 0 if there is none."""

    def truncate(self, replica: ReplicaId, end_offset: int, done: Done) -> None:
        """Truncates the replica to a batch border; a shorter one stays as it is. The outcome is
        durable."""

    # Reading -------------------------------------------------------------------------------------

    def reached(self, replica: ReplicaId) -> Reached | None:
        """How far the replica is durable; None if it is not the tail of an open log."""

    def read(
        self, spec: ShardSpec, replica: ReplicaId, start: int, end: int, max_bytes: int
    ) -> ReplicaBytes:
        """Whole batches from `start`, which is the beginning of one, up to `end` at most: at least
        one, even if it is longer than `max_bytes`. What was `staged` here may be read, and sealed
        segments that are here."""

    def log_of(self, uid: int) -> ShardLog | None:
        """The open log of a shard that has replicas, for statistics and tests."""
