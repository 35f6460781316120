"""Runs a command as the terminal's foreground: Ctrl-C and Ctrl-Z reach it alone, not make, which
would print its own account of them. Ctrl-C is how such a command ends, so it is no failure.
"""

import os
import signal
import subprocess
import sys

INTERRUPTED = 130


def main() -> int:
    terminal = _terminal()
    if terminal is None:
        return _code(subprocess.run(sys.argv[1:], check=False).returncode)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # What is in the background may take it back.
    ours = os.getpgrp()
    child = os.fork()
    if child == 0:  # It begins as the foreground.
        os.setpgid(0, 0)
        os.tcsetpgrp(terminal, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(sys.argv[1], sys.argv[1:])
    try:
        while True:
            _, status = os.waitpid(child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return _code(os.waitstatus_to_exitcode(status))
            os.tcsetpgrp(terminal, ours)
            os.killpg(ours, signal.SIGSTOP)  # The shell continues us together with make.
            os.tcsetpgrp(terminal, child)
            os.killpg(child, signal.SIGCONT)
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
