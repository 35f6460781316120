"""A stop has one deadline, whatever hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

_TIMEOUT_S = 60
_HANGING = """
import ctypes, logging, threading
from firnmq.server.stopping import begin_stop_deadline
logging.basicConfig(format="%(message)s")
begin_stop_deadline(0.1)
{hang}
"""
_HANGS = {
    "in Python": "threading.Event().wait()",
    "with the interpreter's lock": "ctypes.PyDLL(None).sleep(600)",
    "at the end, for a thread": "threading.Thread(target=threading.Event().wait).start()",
}
_SERVING = """
import sys, threading
from firnmq.server import stopping
from firnmq.server.local import LocalStore
stopping.begin_stop_deadline.__defaults__ = (0.1,)
LocalStore.close = lambda store: threading.Event().wait()
from firnmq.__main__ import run
run()
"""


@pytest.mark.parametrize("hang", _HANGS.values(), ids=_HANGS)
def test_what_hangs_ends(hang: str) -> None:
    program = [sys.executable, "-c", _HANGING.format(hang=hang)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 1
    assert "stop_timed_out timeout_s=0.1" in done.stderr or "Timeout (0:00:02" in done.stderr


def test_a_closed_standard_error_is_no_hindrance() -> None:
    hanging = _HANGING.format(hang="print('begun', flush=True)\nthreading.Event().wait()")
    program = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, hanging]
    done = subprocess.run(
        program, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stdout) == (1, "begun\n")


def test_a_node_whose_stop_hangs_ends_and_says_where(tmp_path: Path) -> None:
    command = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--no-admin"]
    with subprocess.Popen(
        [sys.executable, "-c", _SERVING, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("kafka")
        node.send_signal(signal.SIGTERM)
        said, logged = node.communicate(timeout=_TIMEOUT_S)
    assert node.returncode == 1
    assert "stop_timed_out" in logged
    assert "waiting_in=firnmq.server.node:__aexit__" in logged
    assert "stopped" not in said
