"""Shards that share files, beside shards with files of their own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import Bar, Measured, Run, benchmark, median
from firnmq.config import StoreConfig, TopicConfig
from firnmq.engines import Engine
from firnmq.record import NewRecord
from firnmq.server import LocalStore

_SHARD_COUNT = 10_000
_RECORD = NewRecord(value=b"v" * 1024)
_APPENDS = 4_000
_WRITERS = 1_000
"""Appends under way at the same time."""
_OWN_FILE_RATIO_MIN = 10.0
_READ_BATCHES = 2_000
_OTHERS_PER_BATCH = 4
_PLAIN = {"index.key": "false", "index.tag": "false", "expire.header": "none"}
_SHARED = {**_PLAIN, "segment.layout": "shared-file"}


class _Bench:
    """A store with shards of both layouts."""

    def __init__(self, path: Path) -> None:
        self.store = LocalStore(path, config=StoreConfig(), background=False)
        self.engine: Engine = self.store.engines["EngineSegment"]
        self._rng = random.Random(0)

    def shards(self, count: int, options: dict[str, str], name: str) -> list[str]:
        config = TopicConfig.from_options(options)
        names = [f"{name}_{number}" for number in range(count)]
        for first in range(0, count, 10_000):
            self.engine.create_shards(names[first : first + 10_000], config)
        return names

    def append(self, shards: Iterable[str]) -> float:
        """Megabytes per second of durable appends to these shards, in this order."""
        left = iter(list(shards))
        count = 0

        async def write() -> None:
            nonlocal count
            for shard in left:
                await self.engine.append(shard, [_RECORD])
                count += 1

        async def run() -> None:
            await asyncio.gather(*(write() for _ in range(_WRITERS)))

        begun = time.perf_counter()
        asyncio.run(run())
        return count * 1024 / 1e6 / (time.perf_counter() - begun)

    def random_of(self, shards: list[str], count: int = _APPENDS) -> list[str]:
        return self._rng.choices(shards, k=count)


@benchmark("shared_append", unit="MB/s", bar=Bar.ratio_at_least(0.5))
def shared_append(run: Run) -> Measured:
    """Durable appends of 1 KiB to random ones of 10,000 shards that share files, beside the same
    bytes to one shard.

    Less than 10 times what 10,000 shards with files of their own take misses the bar as well.
    """
    bench = _Bench(run.scratch())
    many = bench.shards(_SHARD_COUNT, _SHARED, "shared")
    own = bench.shards(_SHARD_COUNT, _PLAIN, "own")
    (one,) = bench.shards(1, _SHARED, "one")
    bench.append(many)
    bench.append(own)
    measured = run.alternate(
        ours=lambda: bench.append(bench.random_of(many)),
        baseline=lambda: bench.append([one] * _APPENDS),
    )
    own_mb = median(bench.append(bench.random_of(own)) for _ in range(3))
    bench.store.close()
    ratio = measured.value / own_mb
    return Measured(
        value=measured.value,
        baseline=measured.baseline,
        also_holds=ratio >= _OWN_FILE_RATIO_MIN,
        extra={**measured.extra, "own_files_mb_s": own_mb, "times_own_files": ratio},
    )


@benchmark("shared_read", unit="MB/s", bar=Bar.none())
def shared_read(run: Run) -> Measured:
    """One of many shards read from the beginning to the end, its batches of 1 KiB each between
    those of others; beside a shard with files of its own."""
    bench = _Bench(run.scratch())
    (shared,) = bench.shards(1, _SHARED, "read")
    (own,) = bench.shards(1, _PLAIN, "own")
    others = bench.shards(_SHARD_COUNT, _SHARED, "other")
    for _ in range(_READ_BATCHES):
        between = bench.random_of(others, _OTHERS_PER_BATCH)
        bench.append([shared, own, *between])
    measured = run.alternate(
        ours=lambda: _read(bench.engine, shared), baseline=lambda: _read(bench.engine, own)
    )
    bench.store.close()
    return measured


def _read(engine: Engine, shard: str) -> float:
    offset, size = 0, 0
    begun = time.perf_counter()
    while True:
        page = engine.read_batches(shard, offset, max_bytes=1024 * 1024)
        if page.next_offset == offset:
            return size / 1e6 / (time.perf_counter() - begun)
        offset = page.next_offset
        size += sum(map(len, page.batches))
