"""One run of a query's batch, as Spark's tasks and driver do it, in a process to be killed."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator

import pyarrow as pa

from firnmq.lake.spark.committing import (
    BatchCommitter,
    Step,
    TaskWrite,
    WriteExpired,
    WriteOutdated,
)
from firnmq.lake.spark.options import write_options
from firnmq.lake.spark.producing import NotOpen
from firnmq.lake.spark.writing import RowWriter

ROWS = 40

for _needed in ("pandas", "kafka", "firnmq.lake.spark.encoding"):
    importlib.import_module(_needed)  # The first write does, which would be in every process.


def rows(batch: int, task: int) -> list[str]:
    return [f"{batch}/{task}/{index}" for index in range(ROWS)]


def row_writer(address: str, topic: str, timeout_ms: int = 60_000) -> RowWriter:
    options = {"bootstrap": address, "topic": topic, "transactionTimeoutMs": str(timeout_ms)}
    return RowWriter(write_options(options))


def written(writer: RowWriter, query: str, batch: int, run: str, task: int) -> TaskWrite:
    """What a task of the batch writes, and leaves open."""
    values = rows(batch, task)

    def batches() -> Iterator[pa.RecordBatch]:
        half = len(values) // 2
        yield pa.record_batch({"value": values[:half], "key": values[:half]})
        yield pa.record_batch({"value": values[half:], "key": values[half:]})

    message = writer.write_rows(batches(), query, f"spark/{query}/{run}/{task}/0", task)
    assert message.task is not None
    return message.task


def run_batch(
    reports: int,
    address: str,
    topic: str,
    query: str,
    batch: int,
    run: str,
    task_count: int,
    step: str,
    timeout_ms: int,
) -> None:
    """Writes and commits a batch and reports how that ended, unless a step ends the process."""
    writer = row_writer(address, topic, timeout_ms)

    def observe(reached: Step) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    committer = BatchCommitter(writer.connect, topic, query, observe=observe)
    try:
        made = [written(writer, query, batch, run, task) for task in range(task_count)]
        word = "written" if committer.commit(batch, made) else "written before"
    except WriteOutdated:
        word = "outdated"
    except (NotOpen, WriteExpired):
        word = "expired"
    os.write(reports, word.encode() + b"\n")
