"""The I/O pool: a fixed number of threads, each serving its own shards in order.

A shard's number picks its worker, so requests of one shard never overtake each other and no lock
is held while waiting for the disk. A worker blocks for the first request, takes whatever else has
arrived up to a limit, and gives all of it to its handler as one turn: that is what makes one
sync serve hundreds of requests.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from firnmq.disk.waiting import Settlement, Ticket
from firnmq.errors import Closed, FirnError, StorageFailed
from firnmq.eventlog import EventLogger

_log = EventLogger("disk")


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

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.changed = threading.Condition(threading.Lock())
        self.requests: deque[R] = deque()
        self.queued_bytes = 0
        self.room_waiters: list[Ticket[None]] = []
        self.worker_waits = False
        self.closed = False
        self.turn_count = 0
        self.request_count = 0

    def put_nowait(self, request: R) -> bool:
        with self.changed:
            return self._put(request)

    def put_or_wait_for_room(self, request: R) -> Ticket[None] | None:
        """None when the request is queued, else a ticket to wait for before trying again."""
        with self.changed:
            if self._put(request):
                return None
            ticket: Ticket[None] = Ticket()
            self.room_waiters.append(ticket)
            return ticket

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
        if self.worker_waits:
            self.worker_waits = False
            self.changed.notify()
        return True

    def take(self, deadline: float | None) -> list[R] | None:
        """Blocks for the first request; [] when the deadline passed, None when closed and empty."""
        settlement = Settlement()
        with self.changed:
            while not self.requests:
                if self.closed:
                    return None
                timeout = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and timeout <= 0:
                    return []
                self.worker_waits = True
                self.changed.wait(timeout)
                self.worker_waits = False
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
        self._lanes: list[_Lane[R]] = [_Lane(limits) for _ in range(worker_count)]
        self._threads = [
            threading.Thread(
                target=self._work, args=(lane, handler(i)), name=f"{name}-{i}", daemon=True
            )
            for i, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def put_nowait(self, shard_uid: int, request: R) -> bool:
        """Queues the request, or returns False when its worker's queue is full."""
        return self._lanes[shard_uid % len(self._lanes)].put_nowait(request)

    async def put(self, shard_uid: int, request: R) -> None:
        """Queues the request, waiting for room: that wait is the back-pressure."""
        lane = self._lanes[shard_uid % len(self._lanes)]
        while (room := lane.put_or_wait_for_room(request)) is not None:
            await room

    def statistics(self) -> PoolStatistics:
        lanes = self._lanes
        return PoolStatistics(
            worker_count=len(lanes),
            turn_count=sum(lane.turn_count for lane in lanes),
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
    def _work(lane: _Lane[R], handler: TurnHandler[R]) -> None:
        deadline: float | None = None
        while (requests := lane.take(deadline)) is not None:
            if requests:
                turn = Turn(requests)
                try:
                    handler.run(turn)
                except Exception as error:  # Supervisor: a defect fails requests.
                    _fail_all(turn, error)
                turn.settlement.deliver()
            try:
                wanted = handler.tick()
            except Exception as error:  # Supervisor: a worker without a thread hangs its shards.
                _log.error("io_tick_failed", error=repr(error))
                wanted = None
            deadline = None if wanted is None else time.monotonic() + wanted
        handler.close()


def _fail_all(turn: Turn[R], error: Exception) -> None:
    cause = error if isinstance(error, FirnError) else StorageFailed("the I/O worker", error)
    turn.settlement = Settlement()
    for request in turn.requests:
        turn.settlement.fail(request.ticket, cause)
