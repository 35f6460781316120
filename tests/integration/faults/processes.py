"""Processes to be killed: one that has imported everything forks each of them.

A fresh interpreter takes longer to start than most runs take, and these tests need hundreds. The
nursery imports what a job needs before it forks, so that the next child has it already. It opens
no store and starts no thread, so forking it is safe.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
_COMMAND_BYTES_MAX = 65536
_PRELOADED = ("firnmq", "firnmq.record.arrow", "tests.integration.faults.writer")


class Child:
    """One forked process, with the lines it reports."""

    def __init__(self, control: socket.socket, pid: int, reports: int) -> None:
        self._control = control
        self._reports = reports
        self._rest = b""
        self.pid = pid
        self.exit_code: int | None = None

    def lines(self) -> Iterator[bytes]:
        """Whole lines as they come, until the process is gone. May be stopped and resumed."""
        while True:
            while b"\n" in self._rest:
                line, self._rest = self._rest.split(b"\n", 1)
                yield line
            data = os.read(self._reports, _COMMAND_BYTES_MAX)
            if not data:
                return
            self._rest += data

    def has_more(self) -> bool:
        """Whether a line, or the beginning of one, is there already."""
        return b"\n" in self._rest or bool(select.select([self._reports], [], [], 0)[0])

    def kill(self) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)  # The nursery has not reaped it: the pid is its.

    def wait(self) -> int:
        """Waits for the end; the exit code, negative for a signal."""
        if self.exit_code is None:
            self._control.send(b"reap")
            self.exit_code = int(self._control.recv(64))
        return self.exit_code

    def close(self) -> None:
        self.kill()
        self.wait()
        os.close(self._reports)


class Nursery:
    """The process that forks the others, one at a time."""

    def __init__(self, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = log
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=_REPOSITORY,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
            )

    @contextmanager
    def run(self, job: str, *arguments: object) -> Iterator[Child]:
        """Forks a process that calls `module:function(report_descriptor, *arguments)`."""
        mine, theirs = os.pipe()
        try:
            socket.send_fds(self._control, [json.dumps([job, *arguments]).encode()], [theirs])
        finally:
            os.close(theirs)
        pid = int(self._control.recv(64) or b"0")
        if pid == 0:
            raise RuntimeError(f"the nursery has ended:\n{self.log_text()}")
        child = Child(self._control, pid, mine)
        try:
            yield child
        finally:
            child.close()

    def log_text(self) -> str:
        """What the processes printed: log events and tracebacks."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        self._control.close()  # The nursery ends when its control does.
        self._process.wait()


def _serve(control: socket.socket) -> None:
    for module in _PRELOADED:
        importlib.import_module(module)
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, _COMMAND_BYTES_MAX, 1)
        if not command:
            return
        job, *arguments = json.loads(command)
        module, function = str(job).split(":")
        does = getattr(importlib.import_module(module), function)
        assert threading.active_count() == 1, f"importing {module} starts a thread"
        pid = os.fork()
        if pid == 0:
            control.close()
            _run(does, descriptors[0], arguments)
        os.close(descriptors[0])
        control.send(str(pid).encode())
        if not control.recv(64):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        control.send(str(os.waitstatus_to_exitcode(status)).encode())


def _run(does: Callable[..., None], reports: int, arguments: list[object]) -> None:
    """Runs the job and ends the process without any of the interpreter's cleaning up."""
    code = 1
    try:
        does(reports, *arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
