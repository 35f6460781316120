"""Ctrl-C while a command starts and while its process ends: one line and exit code 130. SIGTERM
while a command starts: what the command makes of it.

The launcher starts Python with SIGINT and SIGTERM blocked. `end_on_interrupt` lets SIGINT through:
a Ctrl-C in between is not lost and ends the process there. SIGTERM waits until the command is
known, and for `firn serve` until its handler is set. Imports little, since it comes first.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPED = 130
"""Exit code after Ctrl-C, like that of a program that the signal ends."""


_TAKEN_WITHIN_S = 2.0
"""How long the work has after Ctrl-C to end by itself."""
_SHOW_CURSOR = b"\x1b[?25h"
"""A spinner hides the cursor of the terminal."""

_holds_termination = False
"""SIGTERM waits for `release_termination`. False if another program called the command."""


def end_on_interrupt() -> None:
    """From here on Ctrl-C ends the process, unless it was started with Ctrl-C ignored. SIGTERM
    waits."""
    global _holds_termination
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _holds_termination = True
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)
        # The interpreter takes its handlers away before it ends.
        atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def release_termination() -> None:
    """Lets SIGTERM through. Before it, neither a thread nor another process may be started: they
    would inherit that it is blocked."""
    global _holds_termination
    if _holds_termination:
        _holds_termination = False
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Within it Ctrl-C raises KeyboardInterrupt; afterwards it ends the process again."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield  # Another program called the command.
        return
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def ending_blocked_calls(done: Callable[[], str | None]) -> Iterator[None]:
    """Within it Ctrl-C ends the process even if the main thread is in a call of a library that does
    not return, such as a request to an object store that does not answer: Python raises
    KeyboardInterrupt only after the call. Only for work that may be killed anywhere."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # Ctrl-C is ignored, or another program called the command.
        return
    from threading import Thread

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = Thread(target=_watch, args=(reader, done), name="firn-interrupts", daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # The watcher reads the end of the pipe.
        watcher.join()
        os.close(reader)


def _watch(reader: int, done: Callable[[], str | None]) -> None:
    """Reads the numbers of signals, which the interpreter writes as they come."""
    while number := os.read(reader, 1):
        if number[0] != signal.SIGINT:
            continue
        if select.select([reader], [], [], _TAKEN_WITHIN_S)[0] and not os.read(reader, 1):
            return  # The work has ended.
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        _end_with(done())


def stopped_text(done: str | None = None) -> str:
    """The line after Ctrl-C."""
    return on_new_line("stopped\n" if done is None else f"stopped: {done}\n")


def on_new_line(text: str) -> str:
    """On a terminal the text begins a new line, after `^C` or half a record."""
    return f"\n{text}" if os.isatty(2) else text


def _end(*_: object) -> None:
    _end_with(None)


def _end_with(done: str | None) -> None:
    try:
        os.write(2, stopped_text(done).encode())
    finally:
        os._exit(STOPPED)
