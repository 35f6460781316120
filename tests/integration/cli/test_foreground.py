"""`make run` gives the terminal to the node: Ctrl-C stops the node, and make says nothing of it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

FOREGROUND = Path(__file__).parents[3] / "tools" / "foreground.py"
_MAKEFILE = """\
run:
\t@{python} {foreground} sh -c '{command}'
\t@echo after
"""
_ON_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def on_terminal(folder: Path, command: str, keys: bytes) -> tuple[str, int]:
    """What `make` prints on a terminal, where the keys are pressed once the command says ready;
    and its exit code."""
    text = _MAKEFILE.format(python=sys.executable, foreground=FOREGROUND, command=command)
    (folder / "Makefile").write_text(text)
    terminal, inner = pty.openpty()
    command_line = [sys.executable, "-c", _ON_TERMINAL, "make", "-C", str(folder)]
    with os.fdopen(inner):
        process = subprocess.Popen(command_line, stdin=inner, stdout=inner, stderr=inner)
    said = b""
    try:
        while True:
            before = said
            said += os.read(terminal, 4096)
            if b"ready" in said and b"ready" not in before:
                os.write(terminal, keys)
    except OSError:  # The last program on the terminal has ended.
        pass
    finally:
        os.close(terminal)
    return said.decode(), process.wait()


def test_ctrl_c_reaches_the_command_alone(tmp_path: Path) -> None:
    command = 'trap "echo stopped; exit 130" INT; echo ready; while :; do read key; done'
    said, code = on_terminal(tmp_path, command, b"\x03")
    assert code == 0
    assert "stopped" in said
    assert "after" in said
    assert "make: ***" not in said


def test_a_failure_is_a_failure(tmp_path: Path) -> None:
    said, code = on_terminal(tmp_path, "echo ready; exit 3", b"")
    assert code == 2
    assert "after" not in said


def test_the_command_reads_the_terminal(tmp_path: Path) -> None:
    said, code = on_terminal(tmp_path, 'echo ready; read key; echo "<$$key>"', b"word\n")
    assert (code, "<word>" in said) == (0, True)
