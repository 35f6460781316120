"""The I/O pool: a fixed number of threads, each serving its own shards in order.

A shard's number picks its worker, so requests of one shard never overtake each other and no lock
is held while waiting for the disk. A worker blocks for the first request, takes whatever else has
arrived up to a limit, and gives all of it to its handler as one turn: that is what makes one
sync serve hundreds of requests.

Where a worker has nothing to do and the work is quick, an event loop may take the worker's turn
itself: two changes of thread cost more than a small write into the page cache.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from firnmq.disk.waiting import Settlement, Ticket
from firnmq.errors import Closed, FirnError, StorageFailed
from firnmq.eventlog import EventLogger

_log = EventLogger("disk")

_GUEST_TURN_S = 0.001
"""When to look again for the end of a turn that somebody else is taking."""
_GUEST_SLOW_S = 0.02
_GUEST_PAUSE_S = 1.0
"""After a turn by an event loop that took so long, its worker takes the turns for so long: the
system has begun to make writers wait for the device."""


class Request(Protocol):
    """What the pool needs to know of a request."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def ticket(self) -> Ticket[Any]: ...


R = TypeVar("R", bound=Request)


class Turn(Generic[R]):
    """What a worker took from its queue at once, and where the outcomes go."""

    __slots__ = ("requests", "settlement")

    def __init__(self, requests: list[R]) -> None:
        self.requests = requests
        self.settlement = Settlement()


class TurnHandler(Protocol[R]):
    """Does the work of one worker; only that worker's thread calls it."""

    def run(self, turn: Turn[R]) -> None:
        """Handles every request and resolves or fails every ticket of the turn."""

    def tick(self) -> float | None:
        """Does time-driven work; returns in how many seconds it wants to be called again."""

    def close(self) -> None:
        """Called once, after the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Bounds of one worker's queue and turn."""

    queue_bytes: int = 64 * 1024 * 1024
    """Callers wait while a worker holds this much, so memory depends on workers, not on load."""
    queue_requests: int = 20_000
    turn_bytes: int = 4 * 1024 * 1024
    """A turn is written and synced as one, so this bounds how long a request waits for others."""
    turn_requests: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    worker_count: int
    turn_count: int
    request_count: int
    queued_requests: int
    queued_bytes: int


class _Lane(Generic[R]):
    """One worker's bounded queue. The lock guards every field; the worker is the only taker."""

    def __init__(self, limits: PoolLimits, handler: TurnHandler[R]) -> None:
        self.limits = limits
        self.handler = handler
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.requests: deque[R] = deque()
        self.queued_bytes = 0
        self.room_waiters: list[Ticket[None]] = []
        self.worker_waits = False
        self.worker_is_busy = True
        """The worker is not in `take`."""
        self.has_guest = False
        """Somebody else is taking the worker's turn."""
        self.no_guest_until = 0.0
        self.closed = False
        self.turn_count = 0
        self.request_count = 0

    def put_or_wait_for_room(self, request: R) -> Ticket[None] | None:
        """None when the request is queued, else a ticket to wait for before trying again."""
        with self.changed:
            if self._put(request):
                return None
            ticket: Ticket[None] = Ticket()
            self.room_waiters.append(ticket)
            return ticket

    def put_all(self, requests: Sequence[R]) -> None:
        """Queues requests whatever the limits say; the caller has asked `has_room` before."""
        with self.lock:
            if self.closed:
                raise Closed("the I/O pool is closed")
            self.requests.extend(requests)
            self.queued_bytes += sum(request.size_bytes for request in requests)
            self._wake_worker()

    @property
    def has_room(self) -> bool:
        limits = self.limits
        return len(self.requests) < limits.queue_requests and self.queued_bytes < limits.queue_bytes

    def run_here(self, requests: list[R], loop: asyncio.AbstractEventLoop) -> bool:
        """Takes a turn in place of an idle worker; False if it is not idle."""
        with self.lock:
            if self.requests or self.worker_is_busy or self.has_guest or self.closed:
                return False
            began = time.monotonic()
            if began < self.no_guest_until:
                return False
            self.has_guest = True
            self.turn_count += 1
            self.request_count += len(requests)
        try:
            _run(self.handler, requests).deliver_from(loop)
        finally:
            ended = time.monotonic()
            with self.lock:
                if ended - began > _GUEST_SLOW_S:
                    self.no_guest_until = ended + _GUEST_PAUSE_S
                self.has_guest = False
                if self.requests or self.closed:
                    self._wake_worker()
        return True

    def _wake_worker(self) -> None:
        if self.worker_waits:
            self.worker_waits = False
            self.changed.notify()

    def _put(self, request: R) -> bool:
        if self.closed:
            raise Closed("the I/O pool is closed")
        limits = self.limits
        full = (
            len(self.requests) >= limits.queue_requests
            or self.queued_bytes + request.size_bytes > limits.queue_bytes
        )
        if full and self.requests:  # A request larger than the queue may enter an empty one.
            return False
        self.requests.append(request)
        self.queued_bytes += request.size_bytes
        self._wake_worker()
        return True

    def take(self, deadline: float | None) -> list[R] | None:
        """Blocks for the first request; [] when the deadline passed, None when closed and empty."""
        settlement = Settlement()
        with self.changed:
            self.worker_is_busy = False
            while self.has_guest or not self.requests:
                if self.closed and not self.has_guest:
                    return None
                timeout = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and timeout <= 0:
                    if not self.has_guest:
                        self.worker_is_busy = True
                        return []
                    timeout = _GUEST_TURN_S
                self.worker_waits = True
                self.changed.wait(timeout)
                self.worker_waits = False
            self.worker_is_busy = True
            taken = self._drain()
            self.turn_count += 1
            self.request_count += len(taken)
            for ticket in self.room_waiters:
                settlement.resolve(ticket, None)
            self.room_waiters = []
        settlement.deliver()
        return taken

    def _drain(self) -> list[R]:
        limits = self.limits
        taken: list[R] = []
        taken_bytes = 0
        requests = self.requests
        while requests and len(taken) < limits.turn_requests:
            size = requests[0].size_bytes
            if taken and taken_bytes + size > limits.turn_bytes:
                break
            taken_bytes += size
            taken.append(requests.popleft())
        self.queued_bytes -= taken_bytes
        return taken

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Guest:
    """Leave to do a shard's quickest work without a turn.

    Whoever does it holds what keeps the worker from the same shard meanwhile.
    """

    __slots__ = ("_lane",)

    def __init__(self, lane: _Lane[Any]) -> None:
        self._lane = lane

    def may_work(self) -> bool:
        """Whether everything that the calling thread has queued is done, and quick work is quick.

        The lane's lock is not taken. A worker says that it is busy before it takes from the queue,
        so looking in the other order sees one or the other.
        """
        lane = self._lane
        if lane.requests or lane.worker_is_busy or lane.has_guest or lane.closed:
            return False
        return not lane.no_guest_until or time.monotonic() >= lane.no_guest_until

    def worked(self, seconds: float) -> None:
        lane = self._lane
        lane.turn_count += 1
        lane.request_count += 1
        if seconds > _GUEST_SLOW_S:
            lane.no_guest_until = time.monotonic() + _GUEST_PAUSE_S


class IoPool(Generic[R]):
    """Worker threads with bounded queues; `shard_uid % worker_count` picks the worker."""

    def __init__(
        self,
        *,
        worker_count: int,
        handler: Callable[[int], TurnHandler[R]],
        limits: PoolLimits | None = None,
        name: str = "firn-io",
    ) -> None:
        limits = limits or PoolLimits()
        self._lanes: list[_Lane[R]] = [_Lane(limits, handler(i)) for i in range(worker_count)]
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"{name}-{i}", daemon=True)
            for i, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    async def put(self, shard_uid: int, request: R) -> None:
        """Queues the request, waiting for room: that wait is the back-pressure."""
        lane = self._lanes[shard_uid % len(self._lanes)]
        while (room := lane.put_or_wait_for_room(request)) is not None:
            await room

    def has_room(self, shard_uid: int) -> bool:
        """Whether the shard's worker takes more now."""
        return self._lanes[shard_uid % len(self._lanes)].has_room

    def guest(self, shard_uid: int) -> Guest:
        """For one who does a shard's quickest work by himself."""
        return Guest(self._lanes[shard_uid % len(self._lanes)])

    def hand_over(
        self, requests: Sequence[tuple[int, R]], quick_in: asyncio.AbstractEventLoop | None
    ) -> None:
        """Queues requests, each with its shard's number, without waiting for room.

        Given the running event loop, they are so quick that it takes the turns of idle workers.
        """
        lanes = self._lanes
        by_lane: dict[_Lane[R], list[R]] = {}
        for shard_uid, request in requests:
            by_lane.setdefault(lanes[shard_uid % len(lanes)], []).append(request)
        for lane, group in by_lane.items():
            if quick_in is not None and lane.run_here(group, quick_in):
                continue
            try:
                lane.put_all(group)
            except Closed as refusal:
                settlement = Settlement()
                for request in group:
                    settlement.fail(request.ticket, refusal)
                settlement.deliver()

    @property
    def is_busy(self) -> bool:
        """Whether there is work under way or waiting. No lock is taken: it may have just ended."""
        return any(lane.requests or lane.worker_is_busy or lane.has_guest for lane in self._lanes)

    @property
    def turn_count(self) -> int:
        """Turns so far, in whatever thread. No lock is taken."""
        return sum(lane.turn_count for lane in self._lanes)

    def statistics(self) -> PoolStatistics:
        lanes = self._lanes
        return PoolStatistics(
            worker_count=len(lanes),
            turn_count=self.turn_count,
            request_count=sum(lane.request_count for lane in lanes),
            queued_requests=sum(len(lane.requests) for lane in lanes),
            queued_bytes=sum(lane.queued_bytes for lane in lanes),
        )

    def close(self) -> None:
        """Serves what is queued, then stops the workers."""
        for lane in self._lanes:
            lane.close()
        for thread in self._threads:
            thread.join()

    @staticmethod
    def _work(lane: _Lane[R]) -> None:
        handler = lane.handler
        deadline: float | None = None
        while (requests := lane.take(deadline)) is not None:
            if requests:
                _run(handler, requests).deliver()
            del requests  # An idle worker does not keep the bytes of its last turn.
            try:
                wanted = handler.tick()
            except Exception as error:  # Supervisor: a worker without a thread hangs its shards.
                _log.error("io_tick_failed", error=repr(error))
                wanted = None
            deadline = None if wanted is None else time.monotonic() + wanted
        handler.close()


def _run(handler: TurnHandler[R], requests: list[R]) -> Settlement:
    turn = Turn(requests)
    try:
        handler.run(turn)
    except Exception as error:  # Supervisor: a defect fails requests.
        _fail_all(turn, error)
    return turn.settlement


def _fail_all(turn: Turn[R], error: Exception) -> None:
    cause = error if isinstance(error, FirnError) else StorageFailed("the I/O worker", error)
    turn.settlement = Settlement()
    for request in turn.requests:
        turn.settlement.fail(request.ticket, cause)
