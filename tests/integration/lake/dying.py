"""A conversion on Spark whose first worker dies after its work and before its answer.

Run as `python -m tests.integration.lake.dying OPTIONS MARKER`, in a Spark that tries tasks again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from firnmq.lake.jobs.convert import Conversion, Task, run_task
from firnmq.lake.jobs.runner import SparkRunner
from firnmq.lake.jobs.session import SMALL, spark_session
from tests.integration.lake.lab import sync_here


def run_dying(raw: bytes) -> bytes:
    """Runs in a worker: the first of all is killed, as by the system when memory is short."""
    done = run_task(raw)
    try:
        os.close(os.open(os.environ["FIRN_TEST_MARKER"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return done
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class DyingRunner(SparkRunner):
    def run(self, tasks: Sequence[Task]) -> list[Conversion]:
        done = self._run(run_dying, tasks, "dying")
        return [msgspec.msgpack.decode(each, type=Conversion) for each in done]


def main() -> None:
    options, marker = json.loads(sys.argv[1]), sys.argv[2]
    os.environ["FIRN_TEST_MARKER"] = marker
    settings = {
        **SMALL,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(Path(marker).parent / "spark"),
        "spark.log.level": "OFF",
    }
    spark = spark_session("firn-dying", master="local[2,4]", settings=settings)
    try:
        done = sync_here(options, DyingRunner(spark), split_bytes=2_000, partition="hour")
    finally:
        spark.stop()
    sys.stdout.write(json.dumps({"rows": done.row_count}))


if __name__ == "__main__":
    main()
