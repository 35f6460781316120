"""Calls into an event loop from a worker without releasing the interpreter's lock.

asyncio's `call_soon_threadsafe` ends in a system call that releases the lock. The loop then wakes,
takes the lock and runs all waiting tasks, each of which may encode its next request, before the
worker gets to its next write: the device idles for half a millisecond. Here the worker keeps the
lock until it writes. uvloop already works this way.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

_IS_OFFERED = sys.platform == "linux"
_ONE = (1).to_bytes(8, sys.byteorder)
_write = ctypes.PyDLL(None).write if _IS_OFFERED else None  # Unlike CDLL it keeps the lock.


class _Waker:
    """Runs callbacks in one loop, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._fd, self._run)

    def call(self, function: Callable[[Any], None], argument: Any) -> None:
        self._calls.append((function, argument))
        self._wake()

    def _wake(self) -> None:
        assert _write is not None
        _write(self._fd, _ONE, len(_ONE))

    def _run(self) -> None:
        os.eventfd_read(self._fd)  # Before the calls: a later one wakes us again.
        try:
            while self._calls:
                function, argument = self._calls.popleft()
                function(argument)
        finally:
            if self._calls:  # A defect in one call must not block the others.
                self._wake()

    def __del__(self) -> None:
        os.close(self._fd)


_wakers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waker] = WeakKeyDictionary()


def prepare_waker(loop: asyncio.AbstractEventLoop) -> None:
    """Lets workers call into the running loop; other loops use `call_soon_threadsafe`."""
    if _IS_OFFERED and type(loop) is asyncio.SelectorEventLoop and loop not in _wakers:
        _wakers[loop] = _Waker(loop)


def call_from_worker(
    loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], argument: Any
) -> None:
    """Schedules a function in a loop; drops the call if the loop is closed."""
    waker = _wakers.get(loop)
    if waker is not None:
        waker.call(function, argument)
        return
    try:
        loop.call_soon_threadsafe(function, argument)
    except RuntimeError:  # The loop was closed, and with it the waiting call.
        return
