"""Becomes another program, which the system kills when the thread that started it ends.

`python guard.py PARENT PROGRAM ARGUMENT...`. It imports nothing of the package, so that it starts
in a moment. Asking for that in the child of a fork instead is not safe where threads run.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
