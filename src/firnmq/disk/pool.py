"""The I/O pool: a fixed number of threads, each serving its own shards in order.

A shard's number picks its worker, so requests of one shard never overtake each other and no lock
is held while waiting for the disk. A worker blocks for the first request, takes all other queued
requests up to a limit, and passes them to its handler as one turn: group commit, in which one sync
serves hundreds of requests.

If a worker is idle and a turn needs no sync, an event loop may run the turn inline: two thread
switches cost more than a small write into the page cache.
"""

from __future__ import annotations

import asyncio
import math
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

_INLINE_TURN_S = 0.001
"""How often a worker checks for the end of an inline turn."""
_INLINE_SLOW_S = 0.02
_INLINE_PAUSE_S = 1.0
"""After an inline turn that took this long, the worker runs all turns for a while: the kernel has
begun to block writers for the device."""


class Request(Protocol):
    """The fields of a request that the pool needs."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def ticket(self) -> Ticket[Any]: ...

    @property
    def deadline_s(self) -> float | None:
        """By `time.monotonic`. A request that is still queued then is refused."""

    def overdue(self) -> FirnError:
        """The error of a request that was still queued at its deadline."""


R = TypeVar("R", bound=Request)


class Turn(Generic[R]):
    """The requests that a worker took from its queue together, and where their outcomes go."""

    __slots__ = ("requests", "settlement")

    def __init__(self, requests: list[R]) -> None:
        self.requests = requests
        self.settlement = Settlement()


class TurnHandler(Protocol[R]):
    """Does the work of one worker; only that worker's thread calls it."""

    @property
    def has_parked(self) -> bool:
        """Whether requests of earlier turns wait for something. The lane's `resume` is called when
        they can go on, and then an empty turn may be run."""

    def run(self, turn: Turn[R]) -> None:
        """Handles every request, and resolves or fails every ticket of the turn that it does not
        park: those it takes out of the turn, and puts into the turn in which they go on."""

    def tick(self) -> float | None:
        """Does time-driven work; returns the seconds until the next call."""

    def close(self) -> None:
        """Called once, after the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Bounds of one worker's queue and turn."""

    queue_bytes: int = 64 * 1024 * 1024
    """Callers wait while a queue holds this much: memory depends on workers, not on load."""
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


class Lane(Generic[R]):
    """One worker's bounded queue. The lock guards every field; the worker is the only taker.

    A caller reserves capacity first and then submits the request, so that a full queue blocks
    callers before they submit anything.
    """

    def __init__(self, limits: PoolLimits, handler: TurnHandler[R]) -> None:
        self.limits = limits
        self.handler = handler
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.requests: deque[R] = deque()
        self.held_count = 0
        self.held_bytes = 0
        """Bytes that are reserved or queued."""
        self.room_waiters: list[Ticket[None]] = []
        self.worker_waits = False
        self.gathering_loop: asyncio.AbstractEventLoop | None = None
        """An event loop that will wake the waiting worker."""
        self.worker_is_busy = True
        """The worker is not in `take`."""
        self.is_inline = False
        """An event loop runs the worker's turn."""
        self.inline_after_s = 0.0
        """No inline turn before this time."""
        self.shared_s = -math.inf
        """When a turn last had several requests, by `time.monotonic`."""
        self.is_resumed = False
        """Parked requests can go on."""
        self.closed = False
        self.turn_count = 0
        self.request_count = 0

    def reserve(self, size_bytes: int) -> bool:
        """Reserves capacity for a request, which must then be submitted; False if the queue is
        full. Raises Closed once the pool is closed."""
        limits = self.limits
        with self.lock:
            if self.closed:
                raise Closed("the I/O pool is closed")
            is_full = (
                self.held_count >= limits.queue_requests
                or self.held_bytes + size_bytes > limits.queue_bytes
            )
            if is_full and self.held_count:  # A request larger than the queue enters an empty one.
                return False
            self.held_count += 1
            self.held_bytes += size_bytes
            return True

    def reserve_or_wait(self, size_bytes: int) -> Ticket[None] | None:
        """None if capacity was reserved, otherwise a ticket to await before the next attempt."""
        if self.reserve(size_bytes):
            return None
        ticket: Ticket[None] = Ticket()
        with self.lock:
            self.room_waiters.append(ticket)
            # The worker may have freed capacity just before; then no other event would wake us.
        if self.reserve(size_bytes):
            with self.lock:
                if ticket in self.room_waiters:
                    self.room_waiters.remove(ticket)
            return None
        return ticket

    def queue(
        self, requests: Sequence[R], gather_in: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Queues requests with reserved capacity. Raises Closed once the pool is closed.

        Given the running event loop, the worker is woken after the callbacks that are ready now:
        what they queue shares the turn and its sync.
        """
        with self.lock:
            if self.closed:
                raise Closed("the I/O pool is closed")
            self.requests.extend(requests)
            if gather_in is None or self.gathering_loop not in (None, gather_in):
                self._wake_worker()
            elif self.worker_waits and self.gathering_loop is None:
                self.gathering_loop = gather_in
                gather_in.call_soon(self._end_gathering)

    def queue_now(self, request: R) -> None:
        """Queues a request that nothing can wait for, whether there is capacity or not: its caller
        bounds what it queues. Raises Closed once the pool is closed."""
        with self.lock:
            if self.closed:
                raise Closed("the I/O pool is closed")
            self.held_count += 1
            self.held_bytes += request.size_bytes
            self.requests.append(request)
            self._wake_worker()

    def _end_gathering(self) -> None:
        with self.lock:
            self._wake_worker()

    def resume(self) -> None:
        """Has the worker run a turn for parked requests, before those that are queued."""
        with self.lock:
            self.is_resumed = True
            self._wake_worker()

    def withdraw(self, request: R) -> bool:
        """Removes a request from the queue; False if it is no longer queued."""
        with self.lock:
            if request not in self.requests:
                return False
            self.requests.remove(request)
            self._free((request,))
            woken = self._room_was_made()
        woken.deliver()
        return True

    def run_inline(self, requests: list[R], loop: asyncio.AbstractEventLoop) -> bool:
        """Runs a turn in place of an idle worker; False if it is not idle."""
        with self.lock:
            if self.requests or self.worker_is_busy or self.is_inline or self.closed:
                return False
            if self.is_resumed:  # Parked requests come first.
                return False
            began = time.monotonic()
            if began < self.inline_after_s:
                return False
            self.is_inline = True
            self.turn_count += 1
            self.request_count += len(requests)
            self._free(requests)
        try:
            _run(self.handler, requests).deliver_from(loop)
        finally:
            ended = time.monotonic()
            with self.lock:
                if ended - began > _INLINE_SLOW_S:
                    self.inline_after_s = ended + _INLINE_PAUSE_S
                self.is_inline = False
                if self.requests or self.is_resumed or self.closed:
                    self._wake_worker()
        return True

    def may_append_inline(self) -> bool:
        """Whether an event loop may append without a turn: all requests of the calling thread are
        done. The caller holds the lock that keeps the worker from the same shard.

        The lane's lock is not taken. A worker sets its busy flag before it takes from the queue, so
        a check in the other order sees one of the two.
        """
        if self.requests or self.worker_is_busy or self.is_inline or self.closed:
            return False
        return not self.inline_after_s or time.monotonic() >= self.inline_after_s

    def appended_inline(self, size_bytes: int, seconds: float) -> None:
        """Releases the capacity of a request that was appended without a turn."""
        with self.lock:
            self.held_count -= 1
            self.held_bytes -= size_bytes
            self.turn_count += 1
            self.request_count += 1
            if seconds > _INLINE_SLOW_S:
                self.inline_after_s = time.monotonic() + _INLINE_PAUSE_S

    def _wake_worker(self) -> None:
        self.gathering_loop = None
        if self.worker_waits:
            self.worker_waits = False
            self.changed.notify()

    def take(self, deadline: float | None) -> list[R] | None:
        """Blocks for the first request; [] when the deadline passed or parked requests can go on,
        None when closed and empty."""
        with self.changed:
            self.worker_is_busy = False
            while self.is_inline or not (self.requests or self.is_resumed):
                if self.closed and not self.is_inline and not self.handler.has_parked:
                    return None
                timeout = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and timeout <= 0:
                    if not self.is_inline:
                        self.worker_is_busy = True
                        return []
                    timeout = _INLINE_TURN_S
                self.worker_waits = True
                self.changed.wait(timeout)
                self.worker_waits = False
            self.worker_is_busy = True
            taken = self._drain()
            self.turn_count += 1
            self.request_count += len(taken)
            if len(taken) > 1:
                self.shared_s = time.monotonic()
            settlement = self._room_was_made()
        taken = _in_time(taken, settlement)
        settlement.deliver()
        return taken

    def _room_was_made(self) -> Settlement:
        woken = Settlement()
        for ticket in self.room_waiters:
            woken.resolve(ticket, None)
        self.room_waiters = []
        return woken

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
        self.held_count -= len(taken)
        self.held_bytes -= taken_bytes
        return taken

    def _free(self, requests: Sequence[R]) -> None:
        self.held_count -= len(requests)
        self.held_bytes -= sum(request.size_bytes for request in requests)

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def _in_time(requests: list[R], settlement: Settlement) -> list[R]:
    """Requests whose deadline has not passed; the others are refused before any work."""
    now_s = time.monotonic()
    for request in requests:
        if request.deadline_s is not None and request.deadline_s <= now_s:
            break
    else:
        return requests
    kept = []
    for request in requests:
        if request.deadline_s is not None and request.deadline_s <= now_s:
            settlement.fail(request.ticket, request.overdue())
        else:
            kept.append(request)
    return kept


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
        self._lanes: list[Lane[R]] = [Lane(limits, handler(i)) for i in range(worker_count)]
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"{name}-{i}", daemon=True)
            for i, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def lane(self, shard_uid: int) -> Lane[R]:
        """The queue of the shard's worker."""
        return self._lanes[shard_uid % len(self._lanes)]

    async def wait_for_room(self, shard_uid: int, request: R) -> None:
        """Waits until capacity for a request is reserved: this wait is the back-pressure."""
        lane = self.lane(shard_uid)
        while (room := lane.reserve_or_wait(request.size_bytes)) is not None:
            try:
                await room.within(request.deadline_s)
            except TimeoutError:
                raise request.overdue() from None

    def submit(
        self,
        requests: Sequence[tuple[int, R]],
        inline_in: asyncio.AbstractEventLoop | None = None,
        gather_in: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Queues requests with reserved capacity, each with its shard's number.

        `inline_in` is the running event loop if it may run the turns of idle workers, because the
        requests need no sync; `gather_in` if its ready callbacks may share a turn (`Lane.queue`).
        """
        lanes = self._lanes
        by_lane: dict[Lane[R], list[R]] = {}
        for shard_uid, request in requests:
            by_lane.setdefault(lanes[shard_uid % len(lanes)], []).append(request)
        for lane, group in by_lane.items():
            if inline_in is not None and lane.run_inline(group, inline_in):
                continue
            try:
                lane.queue(group, gather_in)
            except Closed as refusal:
                settlement = Settlement()
                for request in group:
                    settlement.fail(request.ticket, refusal)
                settlement.deliver()

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running or requests are queued. Takes no lock."""
        return any(lane.requests or lane.worker_is_busy or lane.is_inline for lane in self._lanes)

    @property
    def turn_count(self) -> int:
        """Turns so far, in all threads. Takes no lock."""
        return sum(lane.turn_count for lane in self._lanes)

    def statistics(self) -> PoolStatistics:
        lanes = self._lanes
        return PoolStatistics(
            worker_count=len(lanes),
            turn_count=self.turn_count,
            request_count=sum(lane.request_count for lane in lanes),
            queued_requests=sum(len(lane.requests) for lane in lanes),
            queued_bytes=sum(lane.held_bytes for lane in lanes),
        )

    def close(self) -> None:
        """Serves what is queued, then stops the workers."""
        for lane in self._lanes:
            lane.close()
        for thread in self._threads:
            thread.join()

    @staticmethod
    def _work(lane: Lane[R]) -> None:
        handler = lane.handler
        deadline: float | None = None
        while (requests := lane.take(deadline)) is not None:
            if requests or lane.is_resumed:
                lane.is_resumed = False
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
