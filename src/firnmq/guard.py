"""Becomes another program, to which the system sends a signal when the thread that started it ends.

`python guard.py PARENT SIGNAL PROGRAM ARGUMENT...`. As a program it imports nothing of the package,
so that it starts in a moment. Asking for the signal in the child of a fork instead is not safe
where threads run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def guarded(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command, with a guard that has the system signal it when the thread that starts it
    ends."""
    guard = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*guard, str(os.getpid()), str(int(number)), *command]


def _main() -> None:
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # The parent may wait for signals itself.
    os.execv(command[0], command)


if __name__ == "__main__":
    _main()
