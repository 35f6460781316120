"""Durable appends: throughput against a bare loop, records per sync, what indexes add."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import firnmq
from benchmarks.harness import Bar, Better, Measured, Run, benchmark, median
from benchmarks.workload import (
    BATCH_RECORDS,
    MEGABYTE,
    VALUE_BYTES,
    WRITER_COUNT,
    GroupRecorder,
    fresh_directory,
    run_tasks,
    run_threads,
    values,
    write_groups,
)
from firnmq import NewRecord

_BATCHES_PER_WRITER = 32
_SENT_MEGABYTES = WRITER_COUNT * _BATCHES_PER_WRITER * BATCH_RECORDS * VALUE_BYTES / MEGABYTE
_SINGLE_APPENDS = 1_000


class _Appends:
    """Rounds of the same appends through each form of the embedded API."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        plain = values(WRITER_COUNT * BATCH_RECORDS)
        self.values = [
            plain[start : start + BATCH_RECORDS] for start in range(0, len(plain), BATCH_RECORDS)
        ]
        self.records = [[NewRecord(value=value) for value in part] for part in self.values]
        block_bytes = BATCH_RECORDS * (VALUE_BYTES + 64)
        self._arena = values(WRITER_COUNT, block_bytes, seed=2)
        self.groups: list[list[int]] = []

    def by_tasks(self) -> float:
        """MB/s of 64 asyncio tasks."""

        async def append_all(path: Path) -> float:
            async with await firnmq.open_async(path) as store:
                topic = await store.create_topic("t")
                await topic.append(b"opens the segment")
                recorder = GroupRecorder(store.local.files)

                async def write(number: int) -> None:
                    for _ in range(_BATCHES_PER_WRITER):
                        await topic.append(self.records[number])

                seconds = await run_tasks(write, WRITER_COUNT)
                self.groups = recorder.groups
                return seconds

        with self._fresh() as path:
            return _SENT_MEGABYTES / asyncio.run(append_all(path))

    def by_threads(self, *, plain: bool = False) -> float:
        """MB/s of 64 threads; `plain` appends values instead of records."""
        given = self.values if plain else self.records
        with self._fresh() as path, firnmq.open(path) as store:
            topic = store.create_topic("t")
            topic.append(b"opens the segment")

            def write(number: int) -> None:
                for _ in range(_BATCHES_PER_WRITER):
                    topic.append(given[number])

            return _SENT_MEGABYTES / run_threads(write, WRITER_COUNT)

    def bare(self) -> float:
        """MB/s of a loop over the groups that the last round by tasks had."""
        return write_groups(self._directory / "bare", self.groups, self._arena)

    def _fresh(self) -> AbstractContextManager[Path]:
        return fresh_directory(self._directory, f"round-{next(self._numbers)}")


@benchmark("append_durable", unit="MB/s", bar=Bar.ratio_at_least(0.8))
def append_durable(run: Run) -> Measured:
    """1 KiB records, 64 writers, batches of 100, each acknowledged after its fsync.

    The baseline is a bare loop of writev and fdatasync in the very group sizes that our run had,
    on a fresh file, from as many prepared buffers as there are writers.
    """
    appends = _Appends(run.scratch())
    measured = run.alternate(ours=appends.by_tasks, baseline=appends.bare, rounds=7)
    groups = appends.groups
    threads = [appends.by_threads() for _ in range(5)]
    plain = [appends.by_threads(plain=True) for _ in range(5)]
    return Measured(
        value=measured.value,
        baseline=measured.baseline,
        extra={
            **measured.extra,
            "megabytes_per_sync": sum(map(sum, groups)) / len(groups) / MEGABYTE,
            "threads_mb_s": median(threads),
            "threads_plain_values_mb_s": median(plain),
        },
    )


@benchmark("append_alone", unit="ms", bar=Bar.none(), better=Better.LOWER)
def append_alone(run: Run) -> Measured:
    """One record of 1 KiB at a time, each durable before the next: the median of a round.

    The baseline is the least that a log without room does: one call that writes and syncs as many
    bytes at the end of a file.
    """
    record = NewRecord(value=values(1)[0])
    with firnmq.open(run.scratch() / "store") as store:
        topic = store.create_topic("t")
        length = 0

        def ours() -> float:
            nonlocal length
            before = topic.status().length_bytes
            figures = [_timed(partial(topic.append, record)) for _ in range(_SINGLE_APPENDS)]
            length = (topic.status().length_bytes - before) // _SINGLE_APPENDS
            return median(figures) * 1000

        bare = run.scratch() / "bare"
        with bare.open("wb", buffering=0) as file:

            def baseline() -> float:
                data = (values(1, length)[0],)
                position = file.seek(0, os.SEEK_END)
                figures = []
                for _ in range(_SINGLE_APPENDS):
                    write = partial(os.pwritev, file.fileno(), data, position, os.RWF_DSYNC)
                    figures.append(_timed(write))
                    position += length
                return median(figures) * 1000

            return run.alternate(ours=ours, baseline=baseline, rounds=7)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@benchmark("group_commit", unit="records/sync", bar=Bar.value_at_least(500))
def group_commit(run: Run) -> Measured:
    """1,000 concurrent durable appends of one record each to one shard."""
    directory = run.scratch()
    numbers = itertools.count()

    async def append_all(path: Path) -> float:
        async with await firnmq.open_async(path) as store:
            topic = await store.create_topic("t")
            await topic.append(b"opens the segment")
            before = store.local.file_statistics().sync_count
            await asyncio.gather(*(topic.append(b"v%d" % i) for i in range(_SINGLE_APPENDS)))
            return _SINGLE_APPENDS / (store.local.file_statistics().sync_count - before)

    def by_tasks() -> float:
        with fresh_directory(directory, f"round-{next(numbers)}") as path:
            return asyncio.run(append_all(path))

    def by_threads() -> float:
        with (
            fresh_directory(directory, f"round-{next(numbers)}") as path,
            firnmq.open(path) as store,
        ):
            topic = store.create_topic("t")
            topic.append(b"opens the segment")
            before = store.local.file_statistics().sync_count
            run_threads(lambda number: _discard(topic.append(b"v%d" % number)), _SINGLE_APPENDS)
            return _SINGLE_APPENDS / (store.local.file_statistics().sync_count - before)

    measured = run.repeat(by_tasks)
    threads = median(by_threads() for _ in range(5))
    return Measured(value=measured.value, extra={**measured.extra, "threads": threads})


def _discard(result: object) -> None:
    """Turns a call that answers into one that does not."""


_INDEXED_RECORDS = 1_000
_INDEXED_APPENDS = 100
_SHUFFLING_FACTOR = 618_033_988_751
"""Has no divisor in common with 10**12, so that products modulo that are all different."""
_FEW_TAGS = tuple(f"tag-{number}" for number in range(10))


@benchmark("index_cost", unit="ms/1,000 records", bar=Bar.value_at_most(1.0), better=Better.LOWER)
def index_cost(run: Run) -> Measured:
    """What key and tag index add to appending 1,000 records with a key and a tag each.

    Keys are unique and ascend; there are ten tags. The difference of appends to two topics of one
    store that differ only in their indexes: collecting terms, building entries and writing them to
    RocksDB. The topics do not sync, so that the disk's moods do not drown the difference, and the
    CPU time of the whole process, RocksDB's background threads included, is recorded beside it; so
    is what it takes where every record has a tag of its own, and where keys come in no order,
    which makes RocksDB look for the place of each.
    """
    numbers = itertools.count()
    with firnmq.open(run.scratch()) as store:
        indexed = store.create_topic("indexed", options={"durability": "os"})
        plain = store.create_topic(
            "plain", options={"durability": "os", "index.key": "false", "index.tag": "false"}
        )

        def records(*, unique_tags: bool, shuffled_keys: bool) -> list[NewRecord]:
            made = []
            for _ in range(_INDEXED_RECORDS):
                number = next(numbers)
                tag = f"tag-{number:012d}" if unique_tags else _FEW_TAGS[number % len(_FEW_TAGS)]
                if shuffled_keys:
                    number = number * _SHUFFLING_FACTOR % 10**12
                made.append(NewRecord(value=b"v" * 100, key=b"key-%012d" % number, tags=(tag,)))
            return made

        def added(*, unique_tags: bool = False, shuffled_keys: bool = False) -> tuple[float, float]:
            """Median wall and mean CPU milliseconds of one append with indexes minus without."""
            wall: dict[str, list[float]] = {"indexed": [], "plain": []}
            cpu = {"indexed": 0.0, "plain": 0.0}
            for number in range(_INDEXED_APPENDS):
                batch = records(unique_tags=unique_tags, shuffled_keys=shuffled_keys)
                topics = [indexed, plain]
                for topic in topics if number % 2 == 0 else reversed(topics):
                    cpu_before, before = time.process_time(), time.perf_counter()
                    topic.append(batch)
                    wall[topic.name].append(time.perf_counter() - before)
                    cpu[topic.name] += time.process_time() - cpu_before
            difference = median(wall["indexed"]) - median(wall["plain"])
            cpu_difference = (cpu["indexed"] - cpu["plain"]) / _INDEXED_APPENDS
            return difference * 1000, cpu_difference * 1000

        cpu_figures: list[float] = []

        def one_round() -> float:
            wall_ms, cpu_ms = added()
            cpu_figures.append(cpu_ms)
            return wall_ms

        measured = run.repeat(one_round)
        unique = [added(unique_tags=True) for _ in range(3)]
        shuffled = [added(shuffled_keys=True) for _ in range(3)]
    return Measured(
        value=measured.value,
        extra={
            **measured.extra,
            "cpu_ms": median(cpu_figures),
            "unique_tags_ms": median(wall for wall, _ in unique),
            "unique_tags_cpu_ms": median(cpu for _, cpu in unique),
            "shuffled_keys_ms": median(wall for wall, _ in shuffled),
            "shuffled_keys_cpu_ms": median(cpu for _, cpu in shuffled),
        },
    )
