"""Lines of a file or of standard input as they come, with Ctrl-C between them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from select import select
from types import TracebackType
from typing import IO, Any

_PIECE_BYTES = 256 * 1024
_PAUSE_S = 0.1
"""Longer than the gaps within what a program writes at once; short for the user who waits."""


class InputLines:
    """The lines of an open file, each with its end.

    Ctrl-C raises KeyboardInterrupt where the next input is waited for, so that the caller is never
    interrupted while it works on a line that was read. A second Ctrl-C does not wait.
    """

    def __init__(self, file: IO[bytes], line_bytes_max: int) -> None:
        self._file = file
        self._line_bytes_max = line_bytes_max
        self._is_waiting = False
        self._is_stopped = False
        self._handler_before: Any = None
        try:
            self._descriptor: int | None = file.fileno()
        except OSError:
            self._descriptor = None  # A file in memory, which has everything at once.

    def __enter__(self) -> InputLines:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(signal.getsignal(signal.SIGINT)):  # Neither ignored nor foreign.
            self._handler_before = signal.signal(signal.SIGINT, self._note_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handler_before is not None:
            signal.signal(signal.SIGINT, self._handler_before)

    def __iter__(self) -> Iterator[bytes | None]:
        """Lines; None each time that no input has followed them for a moment. A line above the
        limit is given as soon as it is above it."""
        begun, has_news = b"", False
        while True:
            if not self._wait(_PAUSE_S if has_news else None):
                has_news = False
                yield None
                continue
            piece = self._read()
            *lines, begun = (begun + piece).split(b"\n")
            for line in lines:
                has_news = True
                yield line + b"\n"
            if not piece or len(begun) > self._line_bytes_max:
                if begun:
                    yield begun
                return

    def _wait(self, timeout_s: float | None) -> bool:
        """Whether there is input, or its end; False after the time."""
        self._is_waiting = True
        try:
            if self._is_stopped:
                raise KeyboardInterrupt
            if self._descriptor is None:
                return True
            return bool(select([self._descriptor], [], [], timeout_s)[0])
        finally:
            self._is_waiting = False

    def _read(self) -> bytes:
        if self._descriptor is None:
            return self._file.read(_PIECE_BYTES)
        return os.read(self._descriptor, _PIECE_BYTES)

    def _note_interrupt(self, *_: object) -> None:
        if self._is_waiting or self._is_stopped:
            self._is_stopped = True
            raise KeyboardInterrupt
        self._is_stopped = True
