"""Ending Spark says nothing, whatever it is doing."""

from __future__ import annotations

import subprocess
import sys

TIMEOUT_S = 120
_COUNTED = """
import socketserver
from firnmq.cli.lake.running import _end_spark
from firnmq.lake.jobs.session import SMALL, spark_session

context = spark_session(master="local[1]", settings=SMALL, is_quiet=True).sparkContext
assert context.parallelize([1, 2], 1).map(lambda number: number + 1).collect() == [2, 3]
server = context._accumulatorServer
_end_spark()
socketserver.BaseServer.shutdown(server)  # Returns once Java's connection has been handled.
"""


def test_after_tasks_that_reported_to_this_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
