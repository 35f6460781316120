"""The replica that a log's tail is, where a shard has more than one.

A log leads or follows. One that leads appends what clients send; one that follows stages what the
leader's log has, byte for byte. Either has a high watermark that the driver of replication moves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from firnmq.disk import Settlement, Ticket
from firnmq.engines.api import Acks
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.engines.shardlog.append import Append, PreparedBatch
from firnmq.errors import FirnError, ShardError

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog
    from firnmq.engines.shardlog.rolling.steps import Seal

BORDERS_MAX = 4096
"""Ends of turns and of reads whose positions are remembered, so that followers that keep up are
served without a search."""


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


NOTHING = SealFacts(0, -(2**63), 2**63 - 1, ())
"""Of a segment without records."""


class Checked(NamedTuple):
    """Batches from another node, found good."""

    start: ReplicaEnd
    end: ReplicaEnd
    batches: tuple[PreparedBatch, ...]
    leader_epoch: int
    size_bytes: int


class ReplicaFailed(ShardError):
    """The node has no such replica now, or it is not in a state for the call: nothing was done."""

    def __init__(self, shard: str, reason: str) -> None:
        super().__init__("the replica of ", shard, f" {reason}")
        self.reason = reason


class ReplicaListener(Protocol):
    """The driver, as logs see it. Called by workers, with locks held: it takes a note, hands that
    to its own thread, and does not call back."""

    def staged(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        """Logs that lead have grown: followers may fetch up to here, though the disk need not have
        it. Called once in a turn, after the writes and before the syncs."""

    def durable(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        """Logs that lead are durable up to here. Called once, at the end of a turn."""

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        """The log has closed itself: nothing more comes of it until it is opened again."""

    def refusal(self, replica: ReplicaId, acks: Acks) -> FirnError | None:
        """Why the log that leads must not take an append now; None if it may. Asked for each
        append by the worker, before it is stored."""

    def seal(self, replica: ReplicaId, seal: Seal) -> Seal:
        """Has a frozen segment sealed that leads here and is full or old, and whose high watermark
        is at its end. Called by a thread of its own, which waits for it.

        Returns what the metadata have once the next segment is led here as well: the log goes on
        with it by itself, and `Replicas.install` is not called. Raises TimedOut if nothing has
        changed: appends go on. Raises NotLeader if the next segment is led elsewhere; then
        `Replicas.stop_leading` was called, and the replica goes on as every other.
        """


class LogReplica:
    """What a log's role adds to it; also the Replication of its high watermark. The log's lock
    guards it where nothing else is said."""

    __slots__ = (
        "_borders",
        "_gate",
        "_quorum",
        "fence",
        "has_held",
        "high_watermark",
        "id",
        "leads",
        "listener",
        "quorum_mark",
        "reached",
        "refused",
        "written",
    )

    def __init__(
        self, log: ShardLog, listener: ReplicaListener, refused: FirnError, *, leads: bool
    ) -> None:
        self.listener = listener
        self.leads = leads
        """Any thread may make it False."""
        self.refused = refused
        """Why the log takes no appends where it does not lead. Any thread sets it, before `leads`.
        """
        self._gate = threading.Lock()
        """Guards the queue of appends that wait for a quorum, and the mark."""
        self._quorum: deque[Append] = deque()
        self.has_held = False
        """Batches wait for the high watermark to move, because too many index entries do."""
        self.begin(log)

    def begin(self, log: ShardLog) -> None:
        """The log goes on in its tail's segment, which is new to it."""
        tail = log.tail
        self.id = ReplicaId(log.spec.uid, tail.segment.meta.seq)
        self.fence = log.backend.fence_of(self.id)
        self.high_watermark = 0
        """The last that the driver has told; what is above the log's end is shown when it comes."""
        self.quorum_mark = 0
        self._borders: dict[int, int] = {tail.next_offset: tail.position}
        """Offset and position of batch borders. Used by any thread: single operations."""
        self.written = (tail.next_offset, tail.position)
        """The end of what is in the file, synced or not. May be read without the lock."""
        self.reached = self.reached_by(log)
        """Replaced at the end of each turn. May be read without the lock."""

    def reached_by(self, log: ShardLog) -> Reached:
        """How far the log's tail is, if all of it is as durable as the topic asks."""
        tail = log.tail
        facts = SealFacts(
            tail.position,
            tail.builder.max_timestamp,
            tail.builder.first_expiry_ms,
            log.producers.open_transactions(),
        )
        return Reached(ReplicaEnd(tail.next_offset, tail.crc), facts, self.fence)

    def durable_end_moved(self, log: ShardLog, durable_end: int) -> None:
        """Nothing to do: the turn tells the listener of all its logs together."""

    def refusal(self, acks: Acks) -> FirnError | None:
        """Why an append cannot be taken; None if it can. Any thread may ask."""
        if not self.leads:
            return self.refused
        return self.listener.refusal(self.id, acks)

    # Acknowledgements ------------------------------------------------------------------------

    def take_own(self, requests: list[Append], settlement: Settlement) -> list[Append]:
        """Completes the appends that need this node alone, which is durable, keeps those that need
        a quorum, and returns those that need the high watermark."""
        left = []
        for request in requests:
            if request.acks is Acks.ALL:
                left.append(request)
                continue
            appended = request.appended
            assert appended is not None
            if request.acks is Acks.QUORUM:
                request.let_go()
                with self._gate:
                    if appended.next_offset > self.quorum_mark:
                        self._quorum.append(request)
                        continue
            settlement.resolve(request.ticket, appended)
        return left

    def advance_quorum(self, mark: int) -> None:
        """A quorum has everything below the mark. Any thread may call it."""
        settlement = Settlement()
        with self._gate:
            self.quorum_mark = max(mark, self.quorum_mark)
            waiting = self._quorum
            while waiting and waiting[0].appended.next_offset <= mark:  # type: ignore[union-attr]
                request = waiting.popleft()
                assert request.appended is not None
                settlement.resolve(request.ticket, request.appended)
        settlement.deliver()

    def drop_waiting(self, error: FirnError) -> None:
        """Fails the appends that wait for a quorum: their outcome is unknown."""
        with self._gate:
            dropped, self._quorum = self._quorum, deque()
        settlement = Settlement()
        for request in dropped:
            settlement.fail(request.ticket, error)
        settlement.deliver()

    # Batch borders ---------------------------------------------------------------------------

    def note_written(self, log: ShardLog) -> None:
        """The file has everything up to the log's end."""
        self.written = offset, position = log.tail.next_offset, log.tail.position
        self.note_border(offset, position)

    def note_border(self, offset: int, position: int) -> None:
        """A batch begins or will begin here."""
        borders = self._borders
        if len(borders) >= BORDERS_MAX:
            self._borders = borders = dict(sorted(borders.copy().items())[BORDERS_MAX // 2 :])
        borders[offset] = position

    def border(self, offset: int) -> int | None:
        return self._borders.get(offset)

    def truncated(self, log: ShardLog) -> None:
        """The log has another end, and no borders behind it."""
        self._borders = {}
        self.note_written(log)


class ReplicaWork(Append):
    """A call of the driver, in its place among the requests of a lane."""

    __slots__ = ("outcome",)

    def __init__(self, log: ShardLog, outcome: Ticket[Reached], size_bytes: int = 0) -> None:
        super().__init__(None, None, size_bytes)
        self.log = log
        self.outcome = outcome
        self.ticket = outcome  # type: ignore[assignment]  # For a lane that fails it.


class StageWork(ReplicaWork):
    """Batches of the leader."""

    __slots__ = ("checked",)

    def __init__(self, log: ShardLog, ticket: Ticket[Reached], checked: Checked) -> None:
        super().__init__(log, ticket, checked.size_bytes)
        self.checked = checked


class ControlWork(ReplicaWork):
    """A change of the replica's state, made after everything that was queued before it is durable,
    with the log's lock held."""

    __slots__ = ("perform",)

    def __init__(
        self, log: ShardLog, ticket: Ticket[Reached], perform: Callable[[ShardLog], Reached]
    ) -> None:
        super().__init__(log, ticket)
        self.perform = perform


def reached_by(log: ShardLog) -> Reached:
    """How far the log's tail is, all of which is durable; the replica remembers it. The lock is
    held."""
    replica = log.replica
    assert replica is not None
    replica.reached = replica.reached_by(log)
    return replica.reached
