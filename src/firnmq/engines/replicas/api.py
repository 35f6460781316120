"""What the driver of replication calls. What it is told is `ReplicaListener`.

A shard with more than one replica has at most one log here, which leads or follows. Its tail is the
replica that a `ReplicaId` names: the shard's active segment, or a sealed one that is not complete
here yet. Every call with a ticket goes through the lane of its shard, in the order of the calls; a
turn of a worker syncs each file once, whatever was asked of it. A ticket gets the outcome on the
loop that it was made on, all of a turn together.

Threads: `open`, `close_log` and `read` wait for a disk, and `open` for the metadata. Everything
else returns at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from firnmq.disk import FileRange, Ticket
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.replica import Checked, Reached, ReplicaId, ReplicaListener
from firnmq.errors import FirnError


class ReplicaBytes(NamedTuple):
    """Whole batches as they are stored."""

    buffers: tuple[Buffer | FileRange, ...]
    next_offset: int
    """Where they end."""
    size_bytes: int


class Replicas(Protocol):
    """The replicas of a node. Safe with threads."""

    def begin(self, listener: ReplicaListener) -> None:
        """Names the driver, before the first `open`."""

    # The life of a log ---------------------------------------------------------------------------

    def open(self, spec: ShardSpec, meta: SegmentMeta, *, leads: bool) -> Reached:
        """Opens the log of a shard whose tail is the segment of `meta`, from what the disk has, or
        empty. Also after `failed`, and then nothing is gone that was reported as durable.

        What the metadata have behind that segment is not looked at. `meta` may be sealed: then the
        replica is one to be truncated and completed. Only a new segment may be led. Nothing above
        the high watermark that this node had been told is shown.
        """

    def tail_of(self, spec: ShardSpec, chain: Sequence[SegmentMeta]) -> SegmentMeta | None:
        """The segment to open a log with, of those in `chain` that have a replica here: the first
        one behind the last that is sealed and complete here. None if there is none behind it."""

    def is_complete(self, spec: ShardSpec, meta: SegmentMeta) -> bool:
        """Whether a sealed segment is here as a whole: so it was verified, and its index made."""

    def close_log(self, uid: int, refusal: FirnError) -> None:
        """Lets go of a shard's log; its bytes stay. Its callers are told the refusal."""

    def stop_leading(self, replica: ReplicaId, refusal: FirnError, ticket: Ticket[Reached]) -> None:
        """The log takes no appends from now on, and fails those that wait, whose outcome is
        unknown. It is still there for fences, truncation and tail copies, but not for clients."""

    def install(
        self,
        sealed: SegmentMeta,
        active: SegmentMeta,
        spec: ShardSpec,
        start_offset: int,
        ticket: Ticket[Reached],
        *,
        leads: bool,
    ) -> None:
        """The metadata have the tail's segment sealed where it ends here, and the next one open,
        which has a replica here. The log, which does not lead, goes on with that one as leader or
        follower. The ticket gets the new tail's beginning.

        ReplicaFailed if the replica does not end where the sealed one does, with the same CRC.
        `spec.epoch` is the leader epoch of `active`; `start_offset` is where the shard starts.
        """

    def seal_last(self, sealed: SegmentMeta, spec: ShardSpec, ticket: Ticket[Reached]) -> None:
        """The same where the next segment has no replica here: the segment is complete and can be
        read with `read`. Close the log then."""

    # Following -----------------------------------------------------------------------------------

    def stage(
        self, replica: ReplicaId, checked: Checked, high_watermark: int, ticket: Ticket[Reached]
    ) -> None:
        """Appends batches as they are behind the replica's end, of a log that does not lead. Waits
        in the engine while too many index entries wait for the high watermark: see `advance`."""

    def advance(self, replica: ReplicaId, high_watermark: int) -> None:
        """Moves the high watermark. Where the log leads, everything below it is shown and the
        appends with Acks.ALL below it are complete. A log that follows must be told as well, also
        while nothing is staged: its index entries wait for it, in bounded memory."""

    def advance_quorum(self, replica: ReplicaId, mark: int) -> None:
        """The log leads: appends with Acks.QUORUM below the mark are complete."""

    # Fences and truncation -----------------------------------------------------------------------

    def persist_fence(
        self,
        spec: ShardSpec,
        replica: ReplicaId,
        fence: int,
        start_offset: int,
        ticket: Ticket[Reached],
    ) -> None:
        """Makes a fence durable, behind everything that was staged before; a lower one than the
        present changes nothing. `start_offset` is where the segment begins, for the answer where
        nothing of it is here: a replica that may have something must be open."""

    def fence_of(self, replica: ReplicaId) -> int:
        """The fence on disk, 0 if there is none."""

    def truncate(self, replica: ReplicaId, end_offset: int, ticket: Ticket[Reached]) -> None:
        """Truncates the replica to where the sealed segment ends; a shorter one stays as it is.
        Everything that is left counts, and is shown."""

    # Reading -------------------------------------------------------------------------------------

    def reached(self, replica: ReplicaId) -> Reached | None:
        """How far the replica is durable; None if it is not the tail of an open log."""

    def read(
        self, spec: ShardSpec, replica: ReplicaId, start: int, end: int, max_bytes: int
    ) -> ReplicaBytes:
        """Whole batches from `start`, which is the beginning of one, up to `end` at most: at least
        one, even if it is longer than `max_bytes`. What the listener was told as staged may be
        read, and sealed segments that are here."""

    def log_of(self, uid: int) -> ShardLog | None:
        """The open log of a shard that has replicas, for statistics and tests."""
