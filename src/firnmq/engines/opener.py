"""Opens logs for event loops: many that are wanted at the same time by one thread, one after the
other, with one wake-up of the loop for all of them.

A thread for each would cost several times what opening a new shard does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from firnmq.disk.waiting import is_blocking
from firnmq.engines.shardlog import ShardLog

_THREADS_MAX = 4
"""A log whose recovery takes long holds up those behind it in its thread, and no others."""
_BACKLOG = 8
"""So many that wait, for each thread at work, begin another one."""
_AT_ONCE = 64
"""Logs that are given to a loop together."""


class _Wanted(NamedTuple):
    name: str
    loop: asyncio.AbstractEventLoop
    opened: asyncio.Future[ShardLog]


class LogOpener:
    """Safe with threads and event loops."""

    def __init__(self, open_log: Callable[[str], ShardLog]) -> None:
        self._open_log = open_log
        self._lock = threading.Lock()
        """Guards the fields below."""
        self._waiting: deque[_Wanted] = deque()
        self._thread_count = 0

    async def open(self, name: str) -> ShardLog:
        """The log of a shard, opened where waiting is allowed."""
        if is_blocking():
            return self._open_log(name)
        loop = asyncio.get_running_loop()
        wanted = _Wanted(name, loop, loop.create_future())
        with self._lock:
            self._waiting.append(wanted)
            busy = self._thread_count
            needs_thread = len(self._waiting) > _BACKLOG * busy and busy < _THREADS_MAX
            self._thread_count += needs_thread
        if needs_thread:
            loop.run_in_executor(None, self._work)
        return await wanted.opened

    def _work(self) -> None:
        answers: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
        count = 0
        while True:
            with self._lock:
                wanted = self._waiting.popleft() if self._waiting else None
                self._thread_count -= wanted is None
            if wanted is not None:
                answers.setdefault(wanted.loop, []).append(self._answer(wanted))
                count += 1
            if wanted is None or count >= _AT_ONCE:
                for loop, of_loop in answers.items():
                    with suppress(RuntimeError):  # The loop is closed, and its callers with it.
                        loop.call_soon_threadsafe(_give, of_loop)
                answers, count = {}, 0
            if wanted is None:
                return

    def _answer(self, wanted: _Wanted) -> _Answer:
        try:
            return _Answer(wanted.opened, self._open_log(wanted.name), None)
        except Exception as error:  # The caller gets it.
            return _Answer(wanted.opened, None, error)


class _Answer(NamedTuple):
    opened: asyncio.Future[ShardLog]
    log: ShardLog | None
    error: Exception | None


def _give(answers: list[_Answer]) -> None:
    for opened, log, error in answers:
        if opened.done():
            continue  # Its caller was cancelled.
        if log is not None:
            opened.set_result(log)
        elif error is not None:
            opened.set_exception(error)
