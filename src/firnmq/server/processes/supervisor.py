"""Runs processes, starts those that end again, and stops all of them together.

It belongs to the main thread and starts none: it waits for signals. Its processes get SIGTERM when
it ends, however that happens, because each is started through `firnmq.guard`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.guard import guarded
from firnmq.server.stopping import STOP_S

BACKOFF_S, BACKOFF_S_MAX = 0.5, 30.0
STEADY_S = 60.0
"""A process that ran for so long is started again without a longer backoff."""
KILL_S = STOP_S + 4.0
"""From the beginning of a stop: processes that are still there are killed. Each has its own
deadline, which is earlier."""
READY_S = 120.0
"""How long the first start of all processes may take."""
_LOOK_S = 0.02
"""How often a process that starts is looked at."""
_ERROR = "error: "
"""How the line begins with which a command ends that has failed."""
_LAST_BYTES = 4096
_WAITED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
_log = EventLogger("supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a supervised process runs."""

    name: str
    """As messages call it, such as `process 2`."""
    command: Sequence[str]
    is_ready: Callable[[int], bool]
    """Whether the process with this id serves."""
    environment: Mapping[str, str] | None = None
    """None: this process's."""
    log: Path | None = None
    """Where it writes; None: standard error of this process."""
    descriptors: Sequence[int] = ()
    """Open files that it inherits."""


class CannotStart(FirnError):
    """A process did not serve at its first start, so none is run."""

    def __init__(self, name: str, reason: str, log: Path | None) -> None:
        where = "the reason is above" if log is None else f"see {log}"
        super().__init__(f"{name} {reason} before it served; {where}")
        self.name = name


class Stopped(NamedTuple):
    """How a stop went."""

    by: signal.Signals
    failures: tuple[str, ...]
    """What was not as it should be, one line for each process."""


class Supervisor:
    """Used once, by the main thread."""

    def __init__(self, programs: Sequence[Program], say: Callable[[str], None]) -> None:
        """`say` tells the terminal what becomes of the processes."""
        self._processes = [_Process(program) for program in programs]
        self._say = say
        self._all_served = False

    def run(self, ready: Callable[[], None], stopping: Callable[[], None]) -> Stopped:
        """Runs the processes until SIGINT or SIGTERM. `ready` is called once all serve, `stopping`
        when the stop begins. CannotStart if one of them ends before all have served."""
        with _held(_WAITED):
            try:
                for each in self._processes:
                    each.start()
                by = self._supervise(ready)
                stopping()
            except BaseException:
                self._stop()
                raise
            return Stopped(by, self._stop())

    def _supervise(self, ready: Callable[[], None]) -> signal.Signals:
        began = time.monotonic()
        while True:
            number = _next_signal(self._wait_s(time.monotonic()))
            if number in (signal.SIGINT, signal.SIGTERM):
                return number
            now = time.monotonic()
            for each in self._processes:
                self._look_after(each, now)
            if not self._all_served:
                if all(each.serves for each in self._processes):
                    self._all_served = True
                    ready()
                elif now - began > READY_S:
                    slow = next(each for each in self._processes if not each.serves)
                    reason = f"took more than {READY_S:g} s"
                    raise CannotStart(slow.program.name, reason, slow.program.log)

    def _wait_s(self, now: float) -> float:
        """Until there is something to do that no signal tells of."""
        waits = [1.0]
        for each in self._processes:
            if each.starts_at is not None:
                waits.append(max(each.starts_at - now, 0.0))
            elif not each.serves:
                waits.append(_LOOK_S)
        return min(waits)

    def _look_after(self, process: _Process, now: float) -> None:
        name = process.program.name
        if process.starts_at is not None:
            if now >= process.starts_at:
                process.start()
            return
        how = process.how_it_ended()
        if how is not None:
            error = process.last_error()
            if error:
                how = f"{how} ({error})"
            if not self._all_served:
                raise CannotStart(name, how, process.program.log)
            wait_s = process.start_later(now)
            _log.error("process_ended", name=name, how=how, starts_again_in_s=wait_s)
            log = process.program.log
            where = "" if log is None else f", see {log}"
            self._say(f"{name} {how}{where}; it is started again in {wait_s:g} s")
        elif not process.serves and process.look():
            _log.info("process_serves", name=name, pid=process.pid)
            if self._all_served:
                self._say(f"{name} serves again")

    def _stop(self) -> tuple[str, ...]:
        """Ends all processes within one deadline; what went wrong."""
        for each in self._processes:
            each.terminate()
        deadline = time.monotonic() + KILL_S
        killed = set()
        while running := [each for each in self._processes if each.is_running]:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                for each in running:
                    killed.add(each.program.name)
                    each.kill()
                break
            _next_signal(left_s)
        failures = []
        for each in self._processes:
            name, how = each.program.name, each.how_it_stopped()
            if name in killed:
                how = f"did not stop within {KILL_S:g} s and was killed"
            if how is not None:
                _log.error("process_not_stopped", name=name, how=how)
                failures.append(f"{name} {how}")
        return tuple(failures)


class _Process:
    """One process and when it is started next."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.serves = False
        self.starts_at: float | None = None
        """When it is started again, if it has ended."""
        self._backoff_s = BACKOFF_S
        self._began = 0.0
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_began_at = 0

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        program = self.program
        self.serves, self.starts_at, self._began = False, None, time.monotonic()
        with ExitStack() as opened:
            output = 2
            if program.log is not None:
                file = opened.enter_context(program.log.open("ab"))
                output, self._log_began_at = file.fileno(), file.tell()
            self._popen = subprocess.Popen(
                guarded(program.command, signal.SIGTERM),
                env=program.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if program.log is None else output,
                stderr=output,
                pass_fds=program.descriptors,
                start_new_session=True,  # Ctrl-C is for this process, which tells the others.
            )
        _log.info("process_started", name=program.name, pid=self.pid)

    def start_later(self, now: float) -> float:
        """Has an ended process started again after its backoff, which is returned."""
        if now - self._began >= STEADY_S:
            self._backoff_s = BACKOFF_S
        wait_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, BACKOFF_S_MAX)
        self.starts_at = now + wait_s
        return wait_s

    def look(self) -> bool:
        """Whether it serves."""
        self.serves = self.program.is_ready(self.pid)
        return self.serves

    def how_it_ended(self) -> str | None:
        """None while it runs."""
        code = None if self._popen is None else self._popen.poll()
        if code is None:
            return None
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def last_error(self) -> str:
        """The error that an ended process has written last into its log; empty if there is none."""
        if self.program.log is None:
            return ""  # The terminal has shown it.
        with self.program.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_began_at, end - _LAST_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        return errors[-1] if errors else ""

    def how_it_stopped(self) -> str | None:
        """What went wrong when it was told to stop; None if nothing did."""
        if self.starts_at is not None or self._popen is None:
            return None  # It was not running.
        if self._popen.poll() in (0, -signal.SIGTERM):  # The latter while it started.
            return None
        return self.how_it_ended()

    def terminate(self) -> None:
        if self.is_running:
            assert self._popen is not None
            self._popen.terminate()

    def kill(self) -> None:
        assert self._popen is not None
        self._popen.kill()
        self._popen.wait()


@contextmanager
def _held(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """The signals wait until `_next_signal` takes them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        while signal.sigtimedwait(numbers, 0) is not None:
            pass  # A second Ctrl-C during the stop has been answered by it.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _next_signal(timeout_s: float) -> signal.Signals | None:
    found = signal.sigtimedwait(_WAITED, timeout_s)
    return None if found is None else signal.Signals(found.si_signo)
