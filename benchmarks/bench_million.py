"""A million shards on one node, in shared files: what they cost in memory, on disk and in time.

Filling takes minutes. With FIRN_BENCH_MILLION=DIR the directory is kept there, and a run goes on
where the last one ended: each call fills for at most FIRN_BENCH_MILLION_S seconds (default: all).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import firnmq
from benchmarks.bench_shards import descriptor_count, resident_megabytes
from benchmarks.harness import REPOSITORY, Bar, Better, Measured, Run, Skipped, benchmark
from firnmq.config import NodeStoreConfig
from firnmq.server import AsyncStore, AsyncTopicHandle

_TOPICS = 10
_SHARDS_PER_TOPIC = 100_000
_ACTIVE = 10_000
_LOAD_S = 20.0
_WRITERS = 500
_IDLE_S = 30.0
_SETTLE_S = 12.0
"""Two rounds of upkeep after the start, which do what the start has left to them."""
_RSS_MB_MAX = 512
_DESCRIPTORS_MAX = 1_100
_CREATE_S_MAX = 600.0
_START_S_MAX = 10.0
_DISK_BYTES_MAX = 1_024
_IDLE_PERCENT_MAX = 1.0
_VALUE = b"v" * 100
_BATCH_BYTES = 61 + 8 + len(_VALUE)
"""About what a batch of one record takes: the shards' data."""
_OPTIONS = {"segment.layout": "shared-file"}
_CHILD = "import sys, benchmarks.bench_million as bench; bench.child(*sys.argv[1:])"


@benchmark("million_shards", unit="MB", bar=Bar.value_at_most(_RSS_MB_MAX), better=Better.LOWER)
def million_shards(run: Run) -> Measured:
    """Resident memory of a node with 1,000,000 shards, one record in each, while 10,000 of them
    are written and read, after a restart.

    More than 1,100 descriptors, 600 s for making and writing all, 10 s from the start to the first
    read and the first write, or 1 KB of disk per shard beside its records miss the bar as well.
    """
    directory = _filled(run)
    figures = _run("load", directory)
    filled = json.loads((directory / "filled.json").read_text())
    disk_bytes = sum(each.stat().st_size for each in (directory / "data").rglob("*.*"))
    per_shard = disk_bytes / (_TOPICS * _SHARDS_PER_TOPIC) - _BATCH_BYTES
    extra = {
        "descriptors": figures["descriptors"],
        "create_s": filled["create_s"],
        "fill_s": filled["fill_s"],
        "fill_mb": filled["fill_mb"],
        "open_s": figures["open_s"],
        "first_read_s": figures["first_read_s"],
        "first_write_s": figures["first_write_s"],
        "opened_mb": figures["opened_mb"],
        "load_appends_s": figures["appends_s"],
        "disk_bytes_per_shard": per_shard,
    }
    return Measured(
        value=figures["resident_mb"],
        also_holds=(
            figures["descriptors"] <= _DESCRIPTORS_MAX
            and filled["create_s"] + filled["fill_s"] <= _CREATE_S_MAX
            and max(figures["first_read_s"], figures["first_write_s"]) <= _START_S_MAX
            and per_shard <= _DISK_BYTES_MAX
            and filled["fill_mb"] <= _RSS_MB_MAX
        ),
        extra=extra,
    )


@benchmark("shared_idle", unit="%", bar=Bar.value_at_most(_IDLE_PERCENT_MAX), better=Better.LOWER)
def shared_idle(run: Run) -> Measured:
    """Processor time of an idle store with 1,000,000 shards of which 10,000 are open, in per cent
    of one core."""
    figures = _run("idle", _filled(run))
    return Measured(value=figures.pop("idle_percent"), extra=figures)


def _filled(run: Run) -> Path:
    """A directory with all shards; Skipped if filling it has to go on in another run."""
    kept = os.environ.get("FIRN_BENCH_MILLION")
    directory = Path(kept) if kept else run.scratch()
    directory.mkdir(parents=True, exist_ok=True)
    limit_s = float(os.environ.get("FIRN_BENCH_MILLION_S", "1e9"))
    begun = time.monotonic()
    while not (directory / "filled.json").exists():
        left_s = limit_s - (time.monotonic() - begun)
        if left_s <= 0:
            raise Skipped("the directory is not full yet: run it again")
        _run("fill", directory, str(left_s))
    return directory


def _run(step: str, directory: Path, *arguments: str) -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, "-c", _CHILD, step, str(directory), *arguments],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    figures: dict[str, float] = json.loads(answer.splitlines()[-1])
    return figures


def child(step: str, directory: str, *arguments: str) -> None:
    """One step in a process of its own; prints its figures."""
    path = Path(directory)
    steps = {
        "fill": lambda: _fill(path, float(arguments[0])),
        "load": lambda: _load(path),
        "idle": lambda: _idle(path),
    }
    print(json.dumps(asyncio.run(steps[step]())))


async def _open(path: Path) -> AsyncStore:
    return await firnmq.open_async(path / "data", config=NodeStoreConfig())


async def _fill(path: Path, limit_s: float) -> dict[str, float]:
    """Makes the topics and writes one record to each shard, topic by topic, until the time is
    up; the figures of all parts are added up in a file."""
    partial = path / "filling.json"
    figures = {"create_s": 0.0, "fill_s": 0.0, "fill_mb": 0.0, "topics": 0.0}
    if partial.exists():
        figures = json.loads(partial.read_text())
    begun = time.monotonic()
    async with await _open(path) as store:
        if not figures["topics"] and not store.topics():
            started = time.perf_counter()
            for number in range(_TOPICS):
                await store.create_topic(
                    f"devices{number}", shards=_SHARDS_PER_TOPIC, options=_OPTIONS
                )
            figures["create_s"] = time.perf_counter() - started
        while figures["topics"] < _TOPICS and time.monotonic() - begun < limit_s:
            topic = store.topic(f"devices{int(figures['topics'])}")
            started = time.perf_counter()
            await _append(topic, range(_SHARDS_PER_TOPIC))
            figures["fill_s"] += time.perf_counter() - started
            figures["topics"] += 1
            figures["fill_mb"] = max(figures["fill_mb"], resident_megabytes())
            partial.write_text(json.dumps(figures))
            print(f"{figures['topics']:.0f} of {_TOPICS} topics written", file=sys.stderr)
    if figures["topics"] == _TOPICS:
        (path / "filled.json").write_text(json.dumps(figures))
    return figures


async def _append(topic: AsyncTopicHandle, shards: Iterable[int]) -> None:
    left = iter(shards)

    async def write() -> None:
        for shard in left:
            await topic.append(_VALUE, shard=shard)

    await asyncio.gather(*(write() for _ in range(_WRITERS)))


async def _load(path: Path) -> dict[str, float]:
    source = random.Random(0)
    started = time.perf_counter()
    async with await _open(path) as store:
        figures = {"open_s": time.perf_counter() - started}
        topics = [store.topic(f"devices{number}") for number in range(_TOPICS)]
        page = await topics[3].read(0, shard=77_777)
        assert len(page.records()) >= 1
        figures["first_read_s"] = time.perf_counter() - started
        await topics[4].append(_VALUE, shard=12_345)
        figures["first_write_s"] = time.perf_counter() - started
        figures["opened_mb"] = resident_megabytes()
        per_topic = _ACTIVE // _TOPICS
        active = [source.sample(range(_SHARDS_PER_TOPIC), per_topic) for _ in topics]
        count = 0
        begun = time.perf_counter()
        while time.perf_counter() - begun < _LOAD_S:
            await asyncio.gather(
                *(_append(topic, shards) for topic, shards in zip(topics, active, strict=True))
            )
            count += _ACTIVE
        figures["appends_s"] = count / (time.perf_counter() - begun)
        for topic, shards in zip(topics, active, strict=True):
            for shard in shards[::20]:
                assert (await topic.read(0, shard=shard)).records()
        figures["resident_mb"] = resident_megabytes()
        figures["descriptors"] = descriptor_count()
        return figures


async def _idle(path: Path) -> dict[str, float]:
    async with await _open(path) as store:
        for number in range(_TOPICS):
            topic = store.topic(f"devices{number}")
            await _append(
                topic, range(0, _SHARDS_PER_TOPIC, _TOPICS * _SHARDS_PER_TOPIC // _ACTIVE)
            )
        await asyncio.sleep(_SETTLE_S)
        before, begun = time.process_time(), time.perf_counter()
        await asyncio.sleep(_IDLE_S)
        used_s = time.process_time() - before
        return {
            "idle_percent": 100 * used_s / (time.perf_counter() - begun),
            "resident_mb": resident_megabytes(),
        }
