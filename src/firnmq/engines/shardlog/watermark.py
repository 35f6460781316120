"""The high watermark of a log: what is shown, and the points that wait to be.

A point is the end of a turn. With it wait the appends and the index entries up to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from firnmq.disk import Settlement
from firnmq.engines.deletion.deletions import Deletions, Trim, trim
from firnmq.engines.shardlog.append import Append
from firnmq.engines.shardlog.view import View
from firnmq.engines.shardlog.watchers import Watchers
from firnmq.errors import FirnError
from firnmq.index import Checkpoint

if TYPE_CHECKING:
    from firnmq.engines.shardlog.backend import IndexEntry
    from firnmq.engines.shardlog.log import ShardLog

POINTS_MAX = 1024
"""Points of one log that wait; a further one replaces the last, so that the high watermark then
moves in larger steps."""


class Replication(Protocol):
    """What moves the high watermarks of logs with more than one replica."""

    def durable_end_moved(self, log: ShardLog, durable_end: int) -> None:
        """The log is durable here up to this offset; call its `advance` once the other replicas are
        as well. The log's lock is held: do not wait, and do not advance from here."""


class PendingPoint:
    """The end of a turn, and what happens when the high watermark reaches it."""

    __slots__ = ("checkpoint", "entries", "requests", "view")

    def __init__(
        self,
        view: View,
        requests: list[Append],
        entries: list[IndexEntry],
        checkpoint: Checkpoint | None,
    ) -> None:
        self.view = view
        """What is shown then."""
        self.requests = requests
        """Appends that are complete then."""
        self.entries = entries
        """Index entries that are stored then, with a checkpoint."""
        self.checkpoint = checkpoint
        """How far the segment was synced and is indexed then; None if that need not be stored."""

    def add(self, later: PendingPoint) -> None:
        """Becomes the later point."""
        self.view = later.view
        self.checkpoint = later.checkpoint or self.checkpoint
        self.requests += later.requests
        self.entries += later.entries


class HighWatermark:
    """What a log shows. The end of `view` is the high watermark.

    Readers look at `view` without a lock. The gate is held while it is replaced, and never during a
    sync; the log's own lock is taken before it.
    """

    __slots__ = ("_gate", "_pending", "deletions", "view", "watchers")

    def __init__(self, view: View, deletions: Deletions) -> None:
        self.view = view
        self.deletions = deletions
        """What the log's entries delete. Readers read it before `view`."""
        self.watchers = Watchers()
        """Readers that wait for the high watermark to move; woken by what moves it."""
        self._gate = threading.Lock()
        self._pending: deque[PendingPoint] = deque()
        """Points above the high watermark, rising. Guarded by the gate."""

    @property
    def has_pending(self) -> bool:
        """Whether something is stored above the high watermark."""
        return bool(self._pending)

    @property
    def pending_entry_count(self) -> int:
        """Index entries that wait for the high watermark."""
        with self._gate:
            return sum(len(point.entries) for point in self._pending)

    def show(self, view: View) -> None:
        """Moves the high watermark to the end of the view, while no point waits. Deletions below it
        count from now on."""
        with self._gate:
            assert not self._pending
            self.deletions.show(view.end_offset)
            self.view = view

    def change_shown(self, change: Callable[[View], View]) -> None:
        """Changes what is shown, and what will be once the high watermark moves."""
        with self._gate:
            self.view = change(self.view)
            for point in self._pending:
                point.view = change(point.view)

    def trim_deletions(self, keep: Callable[[Trim], None]) -> None:
        """Forgets deletions that are about records below the start alone, once `keep` has stored
        what changes. What readers of older views need is replaced, not changed.

        Turns may go on at the same time, but no other change of the log.
        """
        with self._gate:
            shown, start_offset = self.deletions.shown(), self.view.start_offset
        found = trim(shown, start_offset)
        keep(found)
        if found.changed:
            with self._gate:
                found.left.replace(self.deletions, found.changed)
                self.deletions = found.left

    def add_pending(self, point: PendingPoint, settlement: Settlement) -> None:
        """Lets a point wait for the high watermark. One that is there already is shown at once."""
        with self._gate:
            pending, end_offset = self._pending, point.view.end_offset
            last = pending[-1] if pending else None
            if last is None and end_offset == self.view.end_offset:
                # Batches that were stored before, or a checkpoint alone.
                self.store_entries([point])
                self.view = point.view
                complete(point.requests, settlement)
                return
            for request in point.requests:
                request.let_go()
            if last is None or (end_offset > last.view.end_offset and len(pending) < POINTS_MAX):
                pending.append(point)
            else:
                last.add(point)

    def show_pending(self, high_watermark: int, settlement: Settlement) -> None:
        """Shows the last point at or below the high watermark, and completes the appends up to that
        same point. Where the index entries cannot be stored, nothing changes."""
        with self._gate:
            pending = self._pending
            count = 0
            for point in pending:
                if point.view.end_offset > high_watermark:
                    break
                count += 1
            if not count:
                return
            self.store_entries([pending[number] for number in range(count)])
            shown = [pending.popleft() for _ in range(count)]
            self.view = shown[-1].view
        for point in shown:
            complete(point.requests, settlement)
        self.watchers.wake(settlement)

    def store_entries(self, points: list[PendingPoint]) -> None:
        """Stores the index entries of points that are about to be shown. The gate is held."""
        raise NotImplementedError

    def fail_requests(self, error: FirnError) -> None:
        """Fails the appends that wait; their points go on waiting for the high watermark."""
        settlement = Settlement()
        with self._gate:
            for point in self._pending:
                for request in point.requests:
                    settlement.fail(request.ticket, error)
                point.requests = []
        settlement.deliver()

    def drop_pending(self, error: FirnError) -> None:
        """Fails the appends that wait: the high watermark will not reach them."""
        with self._gate:
            dropped, self._pending = self._pending, deque()
        if dropped:
            settlement = Settlement()
            for point in dropped:
                for request in point.requests:
                    settlement.fail(request.ticket, error)
            settlement.deliver()


def complete(requests: Iterable[Append], settlement: Settlement) -> None:
    """Answers appends that the high watermark has reached, and those that were refused."""
    for request in requests:
        if request.refusal is not None:
            settlement.fail(request.ticket, request.refusal)
            continue
        assert request.appended is not None
        settlement.resolve(request.ticket, request.appended)
