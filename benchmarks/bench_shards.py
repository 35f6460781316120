"""Many shards: what ten thousand of them cost in memory and descriptors."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import firnmq
from benchmarks.harness import REPOSITORY, Bar, Better, Measured, Run, benchmark

_SHARD_COUNT = 10_000
_WRITERS = 32
_DESCRIPTORS_MAX = 1_100
_CHILD = "import sys, benchmarks.bench_shards as bench; bench.child(sys.argv[1])"


@benchmark("shards_10k", unit="MB", bar=Bar.value_at_most(100), better=Better.LOWER)
def shards_10k(run: Run) -> Measured:
    """Resident memory that 10,000 segment shards add, each created and written once.

    Measured in a process of its own. More than 1,100 open descriptors miss the bar as well.
    """
    answer = subprocess.run(
        [sys.executable, "-c", _CHILD, str(run.scratch())],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    figures = json.loads(answer.splitlines()[-1])
    return Measured(
        value=figures.pop("added_mb"),
        also_holds=figures["descriptors"] <= _DESCRIPTORS_MAX,
        extra=figures,
    )


def child(directory: str) -> None:
    """Prints what the shards cost; runs in the child process."""
    print(json.dumps(asyncio.run(_write_shards(Path(directory)))))


async def _write_shards(directory: Path) -> dict[str, float]:
    async with await firnmq.open_async(directory) as store:
        warm = await store.create_topic("warm")
        await warm.append(b"loads what is loaded lazily")
        before = resident_megabytes()
        started = time.perf_counter()
        topic = await store.create_topic("many", shards=_SHARD_COUNT)
        created = time.perf_counter()
        left = iter(range(_SHARD_COUNT))

        async def write() -> None:
            for shard in left:
                await topic.append(b"v" * 100, shard=shard)

        await asyncio.gather(*(write() for _ in range(_WRITERS)))
        written = time.perf_counter()
        return {
            "added_mb": resident_megabytes() - before,
            "descriptors": descriptor_count(),
            "create_s": created - started,
            "write_s": written - created,
        }


def resident_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1_000_000
    raise AssertionError("the kernel does not tell the resident size")


def descriptor_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
