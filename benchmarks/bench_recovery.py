"""Reopening a store whose process was killed, by how much it holds."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import firnmq
from benchmarks.harness import REPOSITORY, Bar, Better, Measured, Run, benchmark
from benchmarks.workload import BATCH_RECORDS, values
from firnmq import NewRecord
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.record import encode
from firnmq.testing.appending import append_batch

_SMALL_BYTES = 1_000_000_000
_LARGE_BYTES = 10_000_000_000
_SEGMENT_BYTES = 256 * 1024 * 1024
_WRITERS = 16
_CHILD = "import sys, benchmarks.bench_recovery as b; b.child(sys.argv[1], int(sys.argv[2]))"
_WRITING_SECONDS = 0.5


@benchmark("recovery", unit="ms", bar=Bar.ratio_at_most(1.5), better=Better.LOWER)
def recovery(run: Run) -> Measured:
    """Opening a store and its shard after kill -9 of a writing process: 10 GB against 1 GB.

    Every round starts a process that goes on writing to the store, kills it in mid-write and
    times the opening up to the first answer from the shard's end.
    """
    large, small = run.scratch(), run.scratch()
    started = time.perf_counter()
    _write_and_kill(small, _SMALL_BYTES)
    _write_and_kill(large, _LARGE_BYTES)
    fill_seconds = time.perf_counter() - started
    recovered: dict[Path, float] = {}

    def reopened(directory: Path) -> float:
        _write_and_kill(directory, 0)
        before = time.perf_counter()
        with firnmq.open(directory) as store:
            topic = store.topic("t")
            end_offset = topic.status().end_offset
            assert topic.read(end_offset - 1, max_records=1).next_offset == end_offset
            milliseconds = (time.perf_counter() - before) * 1000
            recovered[directory] = topic.status().length_bytes / 1_000_000_000
        return milliseconds

    measured = run.alternate(
        ours=lambda: reopened(large), baseline=lambda: reopened(small), warmups=1
    )
    return Measured(
        value=measured.value,
        baseline=measured.baseline,
        extra={
            **measured.extra,
            "large_gb": recovered[large],
            "small_gb": recovered[small],
            "fill_s": fill_seconds,
        },
    )


def _write_and_kill(directory: Path, until_bytes: int) -> None:
    """Has a process write until the topic holds so much, and a while longer; kills it then."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(directory), str(until_bytes)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        is_full = any(line == "full\n" for line in process.stdout)  # Log lines come before it.
        assert is_full, "the writing process failed"
        time.sleep(_WRITING_SECONDS)
        assert process.poll() is None, "the writing process ended before it was killed"
    finally:
        process.kill()
        process.wait()


def child(directory: str, until_bytes: int) -> None:
    """Writes for ever, and says when there is enough; runs in the child process."""
    asyncio.run(_write(Path(directory), until_bytes))


async def _write(directory: Path, until_bytes: int) -> None:
    async with await firnmq.open_async(directory) as store:
        if not store.topics():
            await store.create_topic("t", options={"segment.bytes": _SEGMENT_BYTES})
        topic = store.topic("t").topic
        driver = store.local.manager.driver_of("t")
        assert isinstance(driver, EngineStorageAdapter)
        shard = topic.shard_name(0)
        batch = encode([NewRecord(value=value) for value in values(BATCH_RECORDS)], now_ms=1)
        missing_bytes = until_bytes - (await driver.status(shard)).length_bytes
        left = iter(range(0, missing_bytes, len(batch)))

        async def fill() -> None:
            for _ in left:
                await append_batch(driver, shard, bytearray(batch))

        await asyncio.gather(*(fill() for _ in range(_WRITERS)))
        print("full", flush=True)
        while True:
            await append_batch(driver, shard, bytearray(batch))
