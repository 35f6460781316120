"""Runs a command as the terminal's foreground: Ctrl-C and Ctrl-Z reach it alone, not make, which
would print its own account of them. Ctrl-C is how such a command ends, so it is no failure.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress

INTERRUPTED = 130


def main() -> int:
    terminal = _terminal()
    if terminal is None:
        return _code(subprocess.run(sys.argv[1:], check=False).returncode)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # What is in the background may take it back.
    ours = os.getpgrp()
    child = subprocess.Popen(sys.argv[1:], process_group=0)
    try:
        while True:
            os.tcsetpgrp(terminal, child.pid)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGCONT)
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                child.returncode = os.waitstatus_to_exitcode(status)
                return _code(child.returncode)
            os.tcsetpgrp(terminal, ours)
            os.killpg(ours, signal.SIGSTOP)  # The shell continues us together with make.
    finally:
        os.tcsetpgrp(terminal, ours)


def _terminal() -> int | None:
    """The terminal, if this process is in its foreground."""
    try:
        return 0 if os.tcgetpgrp(0) == os.getpgrp() else None
    except OSError:
        return None


def _code(returncode: int) -> int:
    return 0 if returncode in (INTERRUPTED, -signal.SIGINT) else abs(returncode)


if __name__ == "__main__":
    sys.exit(main())
