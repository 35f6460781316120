"""Runs a member of etcd: its log lines become ours, and when it dies it is started again."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.guard import guarded

_STOP_S = 10.0
"""How long a member may take to stop; it hands its leadership over first."""
_BACKOFF_S, _BACKOFF_S_MAX = 0.5, 30.0
_STEADY_S = 60.0
"""A member that ran for this long is started again without backoff."""
_LINES_MAX, _LINES_S = 50, 10.0
"""Log lines of a member that are passed on in so many seconds; the others are only counted."""
_LINE_BYTES_MAX = 16 * 1024
_SHOWN_MAX = 2_000
_ERRORS = ("fatal", "panic", "dpanic")
_log = EventLogger("etcd")


class EtcdMember:
    """One process of etcd, from `start` to `stop`. It never outlives this process: the system kills
    it when the thread that started it ends, however that ends."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._command = list(command)
        self._directory = directory
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        """Guards the process: `stop` and a restart exclude each other."""
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name="firn-etcd", daemon=True)
        self.restart_count = 0

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_running(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EtcdCannotStart(f"{self._directory} cannot be made: {error}") from error
        self._thread.start()

    def stop(self) -> None:
        """Stops the member. Stopping twice is no error."""
        with self._lock:
            self._stopping.set()
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
        if not self._thread.ident:
            return
        self._thread.join(_STOP_S)
        process = self._process
        if self._thread.is_alive() and process is not None:
            _log.warning("etcd_does_not_stop", pid=process.pid, waited_s=_STOP_S)
            process.kill()
        self._thread.join()

    def _supervise(self) -> None:
        backoff_s = _BACKOFF_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                code = self._run()
            except OSError as error:
                code = -1
                _log.error("etcd_cannot_start", error=error)
            if self._stopping.is_set():
                return
            if time.monotonic() - began >= _STEADY_S:
                backoff_s = _BACKOFF_S
            self.restart_count += 1
            _log.error("etcd_ended", exit_code=code, starts_again_in_s=backoff_s)
            self._stopping.wait(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)

    def _run(self) -> int:
        """Runs the member until it ends; its exit code."""
        with self._lock:
            if self._stopping.is_set():
                return 0
            self._process = process = subprocess.Popen(
                guarded(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                start_new_session=True,  # Ctrl-C is for this process, which then stops the member.
            )
        _log.info("etcd_started", pid=process.pid)
        assert process.stdout is not None
        with process.stdout as lines:
            passed, since = 0, time.monotonic()
            while line := lines.readline(_LINE_BYTES_MAX):
                if time.monotonic() - since >= _LINES_S:
                    if passed > _LINES_MAX:
                        _log.warning("etcd_lines_left_out", count=passed - _LINES_MAX)
                    passed, since = 0, time.monotonic()
                passed += 1
                if passed <= _LINES_MAX:
                    pass_on(line)
        return process.wait()


class EtcdCannotStart(FirnError):
    """The member's directory cannot be used."""


def pass_on(line: bytes) -> None:
    """One line of etcd's log among ours. etcd's own errors mostly concern other members or slow
    disks and pass, so that they are warnings here."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            _log.warning("etcd_says", text=text[:_SHOWN_MAX])
        return
    level = str(fields.pop("level", "warn"))
    text = str(fields.pop("msg", ""))
    for name in ("ts", "caller", "stacktrace"):
        fields.pop(name, None)
    more = " ".join(f"{name}={value}" for name, value in fields.items())[:_SHOWN_MAX]
    if level in _ERRORS:
        _log.error("etcd_says", text=text, more=more)
    elif level in ("info", "debug"):
        _log.info("etcd_says", text=text, more=more)
    else:
        _log.warning("etcd_says", text=text, more=more)
