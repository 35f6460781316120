"""What processes share beside a SQLite file: one lock for writers, and hints that wake watchers.

SQLite itself lets several processes write, but a process that finds the file locked sleeps for up
to 0.1 s between attempts. SQLite before 3.51.3 can also damage a file if one process checkpoints
its log while another one writes. Both are avoided if all writers hold a lock of their own from the
beginning of a transaction until its checkpoint is done.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from firnmq.errors import Closed, TimedOut
from firnmq.eventlog import EventLogger

_ATTEMPT_S = 0.001
"""Between two attempts to get the lock, on average. A commit takes a few of these."""
_WITHOUT_HINTS_S = 0.02
"""How often a process looks where there can be no hints."""
_LOGGED_AFTER_S = 1.0
"""A wait that is longer than this is logged while it lasts."""
_HOLDER_BYTES = 20
_PRIVATE_DIRECTORY, _PRIVATE_FILE = 0o700, 0o600
_log = EventLogger("meta")


class WriterLock:
    """Held by the one thread of one process that may write. A process that is killed lets go. One
    that is stopped does not, so that the file names it: those that wait say for whom."""

    def __init__(self, path: Path, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._threads = threading.RLock()
        self._depth = 0
        """How often the thread that holds the lock has entered it."""
        self._holder = str(os.getpid()).encode().ljust(_HOLDER_BYTES)
        self._is_closed = False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, _PRIVATE_FILE)

    @contextmanager
    def held(self) -> Iterator[None]:
        """TimedOut if it cannot be had in time: then the caller has changed nothing."""
        deadline = time.monotonic() + self._wait_s
        if not self._threads.acquire(timeout=self._wait_s):
            raise self._timed_out()
        try:
            if self._is_closed:
                raise Closed("the meta store is closed")
            if self._depth == 0:
                self._lock_file(deadline)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Waits for the threads that have it or want it."""
        with self._threads:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)

    def _lock_file(self, deadline: float) -> None:
        began = time.monotonic()
        logs_at = began + _LOGGED_AFTER_S
        while not self._has_locked_file():
            now = time.monotonic()
            if now >= deadline:
                raise self._timed_out()
            if now >= logs_at:
                logs_at = deadline
                _log.warning("meta_waits", waits_for=self._present_holder(), file=self._path)
            time.sleep(random.uniform(0, 2 * _ATTEMPT_S))
        os.pwrite(self._file, self._holder, 0)
        if time.monotonic() - began > _LOGGED_AFTER_S:
            _log.info("meta_goes_on", file=self._path)

    def _has_locked_file(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _timed_out(self) -> TimedOut:
        return TimedOut(
            f"{self._present_holder()} has held {self._path} for {self._wait_s:g} s; "
            "nothing was changed"
        )

    def _present_holder(self) -> str:
        """The process that has the lock, and what keeps it from going on."""
        try:
            pid = int(os.pread(self._file, _HOLDER_BYTES, 0))
        except (OSError, ValueError):
            return "another writer"
        if pid == os.getpid():
            return "another thread"
        state = _state_of(pid)
        return f"process {pid}{f', which is {state}' if state else ''}"


def _state_of(pid: int) -> str:
    """Why a process does not go on, as far as the system tells; empty if it may."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    state = text.rpartition(")")[2].split()[0]
    return {"T": "stopped (kill -CONT lets it go on)", "t": "stopped by a debugger"}.get(state, "")


class Hints:
    """A directory of sockets, one of each process that watches. A writer sends each of them an
    empty message after its commit. One that is lost costs a watcher the time until it looks by
    itself, and nothing else."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
        self._directory = directory
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._own: socket.socket | None = None
        self._own_name = ""

    def listen(self) -> None:
        """Hints of others arrive from now on."""
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        try:
            own.bind(self._address(name))
        except OSError as error:  # Some file systems have no sockets.
            own.close()
            _log.warning("meta_without_hints", directory=self._directory, error=str(error))
            return
        self._own_name, self._own = name, own

    def wait(self, timeout_s: float) -> bool:
        """Waits for a hint; False if none comes in time."""
        own = self._own
        if own is None:
            time.sleep(min(timeout_s, _WITHOUT_HINTS_S))
            return False
        try:
            own.settimeout(timeout_s)
            own.recv(1)
            own.settimeout(0)
            while True:  # One look serves all hints that are there.
                own.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True

    def tell(self, *, also_self: bool = False) -> None:
        """Wakes the other processes that watch."""
        for name in os.listdir(self._descriptor):
            if name == self._own_name and not also_self:
                continue
            try:
                self._sender.sendto(b"", self._address(name))
            except ConnectionRefusedError:  # Left by a process that was killed.
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._descriptor)
            except OSError:
                continue  # Its queue is full, so that it wakes; or it has just closed.

    def close(self) -> None:
        if self._own is not None:
            with suppress(OSError):
                os.unlink(self._own_name, dir_fd=self._descriptor)
            self._own.close()
        self._sender.close()
        os.close(self._descriptor)

    def _address(self, name: str) -> str:
        """Addresses of sockets are at most 107 bytes long, paths of directories are not."""
        if os.path.isdir("/proc/self/fd"):
            return f"/proc/self/fd/{self._descriptor}/{name}"
        return str(self._directory / name)
