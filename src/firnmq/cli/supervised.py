"""Processes that a command runs beside itself: started again when they end, gone with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click

from firnmq.meta.member import guard

_LOOK_S = 0.1
_STOP_S = 30.0
_BACKOFF_S, _BACKOFF_S_MAX = 1.0, 30.0
_STARTS_MAX = 3
"""Attempts to start a process that has never served; then the command gives up."""
_REASON_BYTES = 4096
_REASON_CHARS = 500
_ERROR = "error: "


class Supervised:
    """One process, run by a thread from `start` until `stopping` is set.

    The system kills it when the command ends, however that ends, where it can (on Linux).
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        log: Path,
        serves: Callable[[int], bool],
        stopping: threading.Event,
    ) -> None:
        """`serves`: whether the process of this id is ready."""
        self.name = name
        self._command = command
        self._environment = environment
        self.log = log
        self._serves = serves
        self._stopping = stopping
        self.is_ready = False
        """Whether the present process serves."""
        self.failure: str | None = None
        """Why it was given up."""
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        has_served, failed_starts = False, 0
        while not self._stopping.is_set():
            began_at = self.log.stat().st_size if self.log.exists() else 0
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *self._command],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the command, which tells the others.
                )
            code = self._watch(process)
            if code is None:
                return
            has_served |= self.is_ready
            failed_starts = 0 if self.is_ready else failed_starts + 1
            self.is_ready = False
            reason = self._last_words(began_at) or f"exit code {code}"
            if failed_starts >= _STARTS_MAX and not has_served:
                self.failure = f"{self.name} does not start: {reason}; see {self.log}"
                self._stopping.set()
                return
            pause_s = min(_BACKOFF_S * 2 ** max(failed_starts - 1, 0), _BACKOFF_S_MAX)
            what = "does not start" if failed_starts else "ended"
            click.echo(
                f"{self.name} {what}: {reason}; it is started again in {pause_s:g} s, see "
                f"{self.log}",
                err=True,
            )
            self._stopping.wait(pause_s)

    def _watch(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code of a process that ended by itself; None after it was told to stop."""
        while process.poll() is None:
            if not self.is_ready:
                self.is_ready = self._serves(process.pid)
            if self._stopping.wait(_LOOK_S):
                break
        if process.poll() is not None:
            return process.returncode
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            click.echo(f"{self.name} did not stop in time and is killed", err=True)
            process.kill()
            process.wait()
        return None

    def _last_words(self, began_at: int) -> str:
        """The error that the process wrote last, else its last line."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(began_at, end - _REASON_BYTES))
            lines = log.read().decode("utf-8", "replace").strip().split("\n")
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        return (errors or lines)[-1].strip()[:_REASON_CHARS]


def steady_for(seconds: float) -> Callable[[int], bool]:
    """`serves` of a process that does not say when it is ready: it has run for so long."""
    began: dict[int, float] = {}
    return lambda pid: time.monotonic() - began.setdefault(pid, time.monotonic()) >= seconds
