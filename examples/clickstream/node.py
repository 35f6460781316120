"""A node of one's own, in a process that ends with the example."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, Timer

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


@contextmanager
def serving(data: Path) -> Iterator[str]:
    """Serves the data directory and gives the address for Kafka clients."""
    command = [sys.executable, "-m", "firnmq", "serve", "--data", str(data)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--admin-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    watchdog = Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            words = line.split()
            if words[:1] == ["kafka"]:
                # Whatever it says later must not fill the pipe.
                Thread(target=process.stdout.read, daemon=True).start()
                return words[1]
    finally:
        watchdog.cancel()
    raise RuntimeError("the node did not start; try: firn serve")
