"""Waiting for the pool, from a thread or from an event loop, with one set of coroutines.

Everything above the pool is written once, as coroutines that await only a Ticket or
`call_blocking`. Under asyncio they run as usual. `run_blocking` drives the same coroutine in the
calling thread: a Ticket then parks that thread on a lock and `call_blocking` calls the function
directly, so a synchronous caller needs no event loop and no second thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from firnmq.disk.loop_calls import call_from_worker, prepare_waker
from firnmq.errors import TimedOut

T = TypeVar("T")


class _Mode(threading.local):
    blocking = False


_mode = _Mode()


def is_blocking() -> bool:
    """Whether the running coroutine is driven by `run_blocking`: waiting blocks the thread."""
    return _mode.blocking


class Ticket(Generic[T]):
    """A result that a pool worker will provide. Owned by the caller who made it."""

    __slots__ = ("_error", "_future", "_loop", "_overdue", "_parked", "_value")

    def __init__(self) -> None:
        self._value: T | None = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[T] | None = None
        self._parked: threading.Lock | None = None
        self._overdue: dict[Ticket[Any], Any] | None = None
        """The deadline sweep's table that holds the ticket until it is complete."""
        if _mode.blocking:
            self._parked = threading.Lock()
            self._parked.acquire()
        else:
            self._loop = asyncio.get_running_loop()
            self._future = self._loop.create_future()
            prepare_waker(self._loop)

    def wait(self, timeout_s: float = -1) -> T:
        """Parks the calling thread until the result is there."""
        assert self._parked is not None, "wait() is for tickets made under run_blocking"
        if not self._parked.acquire(timeout=timeout_s):
            raise TimedOut(f"no answer from the disk within {timeout_s} s; the outcome is unknown")
        self._parked.release()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    async def within(self, deadline_s: float | None) -> T:
        """The result; TimeoutError if it is not there by the deadline (`time.monotonic`)."""
        if deadline_s is None:
            return await self
        left_s = max(deadline_s - time.monotonic(), 0.0)
        if self._parked is not None:
            try:
                return self.wait(left_s)
            except TimedOut as error:
                raise TimeoutError(str(error)) from None
        async with asyncio.timeout(left_s):
            return await self

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the ticket completes; None if a thread waits for it."""
        return self._loop

    def keep_in(self, overdue: dict[Ticket[Any], Any], request: object) -> None:
        """Registers the ticket in `overdue` until it is complete. On its event loop."""
        overdue[self] = request
        self._overdue = overdue

    def expire(self, error: BaseException) -> None:
        """Completes the ticket with an error, on its event loop; a later outcome is dropped."""
        self._forget()
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)

    def _forget(self) -> None:
        if self._overdue is not None:
            self._overdue.pop(self, None)
            self._overdue = None

    def __await__(self) -> Generator[Any, None, T]:
        if self._future is not None:
            return (yield from self._future.__await__())
        yield self
        return self.wait()

    def settle_here(self) -> None:
        """Delivers the outcome without a hop, by the owner, in its own thread or loop."""
        if self._parked is not None:
            self._parked.release()
        else:
            self._settle()

    def _settle(self) -> None:
        """Completes the future with the stored outcome. Runs on the ticket's event loop."""
        assert self._future is not None
        self._forget()
        if self._future.done():  # The waiter was cancelled, or the deadline has passed.
            return
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._value)  # type: ignore[arg-type]


class Notice(Ticket[T]):
    """A ticket with a callback: `settled` is called once with the outcome, on the event loop.

    It saves a future and a task per request, of which there are tens of thousands a second.
    """

    __slots__ = ("is_settled",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._value = None
        self._error = None
        self._loop = loop
        self._future = None
        self._parked = None
        self._overdue = None
        self.is_settled = False

    def is_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop is loop

    def settled(self, value: T | None, error: BaseException | None) -> None:
        """Handles the outcome; either `value` or `error` is None."""
        raise NotImplementedError

    def settle_with(self, value: T) -> None:
        """Completes the ticket at once. On its event loop."""
        self.is_settled = True
        self.settled(value, None)

    def expire(self, error: BaseException) -> None:
        self._forget()
        if not self.is_settled:
            self.is_settled = True
            self.settled(None, error)

    def _settle(self) -> None:
        if self._overdue is not None:
            self._forget()
        if not self.is_settled:  # Otherwise the deadline has passed.
            self.is_settled = True
            self.settled(self._value, self._error)


class Settlement:
    """Gathers the outcomes of one turn and delivers them with one hop per event loop."""

    __slots__ = ("_by_loop", "_parked")

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, list[Ticket[Any]]] = {}
        self._parked: list[Ticket[Any]] = []

    def resolve(self, ticket: Ticket[T], value: T) -> None:
        ticket._value = value
        self._add(ticket)

    def fail(self, ticket: Ticket[Any], error: BaseException) -> None:
        ticket._error = error
        self._add(ticket)

    def _add(self, ticket: Ticket[Any]) -> None:
        if ticket._loop is None:
            self._parked.append(ticket)
        else:
            self._by_loop.setdefault(ticket._loop, []).append(ticket)

    def deliver(self) -> None:
        """Wakes the waiters of all outcomes gathered so far."""
        parked, self._parked = self._parked, []
        for ticket in parked:
            assert ticket._parked is not None
            ticket._parked.release()
        by_loop, self._by_loop = self._by_loop, {}
        for loop, tickets in by_loop.items():
            call_from_worker(loop, _settle_all, tickets)

    def deliver_here(self) -> None:
        """`deliver` from a coroutine, in either mode."""
        if _mode.blocking:
            self.deliver()
        else:
            self.deliver_from(asyncio.get_running_loop())

    def deliver_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """`deliver` from within an event loop, whose own tickets need no hop."""
        tickets = self._by_loop.pop(loop, ())
        self.deliver()
        for ticket in tickets:
            ticket._settle()


def _settle_all(tickets: list[Ticket[Any]]) -> None:
    for ticket in tickets:
        ticket._settle()


async def call_blocking(executor: Executor | None, function: Callable[..., T], *args: Any) -> T:
    """Calls a blocking function: in place under `run_blocking`, in a thread under asyncio."""
    if _mode.blocking:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(executor, function, *args)


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drives a coroutine that awaits only Tickets and `call_blocking` in the calling thread."""
    before, _mode.blocking = _mode.blocking, True
    try:
        while True:
            ticket = coroutine.send(None)
            assert isinstance(ticket, Ticket), "only storage coroutines can run without a loop"
            assert ticket._parked is not None
            ticket._parked.acquire()
            ticket._parked.release()
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        _mode.blocking = before
        coroutine.close()
