"""What it costs to judge compressed batches before they are acknowledged.

The same batches go to a topic that judges their records (`check.compressed`, the default) and to
one that looks at header and CRC only. Both keep no index and leave syncing to the system, so that
the check is as large a part of an append as it can be.
"""

import asyncio
import random
from pathlib import Path

import firnmq
from benchmarks.harness import Measured, Run, benchmark
from benchmarks.workload import run_tasks
from firnmq import NewRecord
from firnmq.adapter import EngineStorageAdapter
from firnmq.record import Compression, encode
from firnmq.testing.appending import append_batch

_WRITER_COUNT = 8
_BATCHES_PER_WRITER = 24
_BATCH_RECORDS = 500
_MEBIBYTE = 1024**2
_NOW_MS = 1_700_000_000_000
_OPTIONS = {
    "index.key": False,
    "index.tag": False,
    "expire.header": "none",
    "durability": "os",
}
_WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
]


def _records() -> list[NewRecord]:
    """JSON of about a kilobyte, with a typical compression ratio."""
    rng = random.Random(1)
    return [
        NewRecord(
            key=b"user-%06d" % rng.randrange(10**6),
            value=(
                f'{{"id":{number},"amount":{rng.random()},"page":"/item/{rng.randrange(10**4)}",'
                f'"text":"{" ".join(rng.choices(_WORDS, k=160))}"}}'
            ).encode(),
        )
        for number in range(_BATCH_RECORDS)
    ]


class _Appends:
    """Rounds of the same compressed batches, with and without the check."""

    def __init__(self, directory: Path, codec: Compression) -> None:
        self._directory = directory
        self._round = 0
        records = _records()
        plain_bytes = len(encode(records, now_ms=_NOW_MS))
        self.batch = bytes(encode(records, now_ms=_NOW_MS, compression=codec))
        self._mebibytes = _WRITER_COUNT * _BATCHES_PER_WRITER * plain_bytes / _MEBIBYTE

    def checked(self) -> float:
        return asyncio.run(self._append_all(check=True))

    def unchecked(self) -> float:
        return asyncio.run(self._append_all(check=False))

    async def _append_all(self, *, check: bool) -> float:
        """MiB of records per second, before they were compressed."""
        self._round += 1
        path = self._directory / f"round-{self._round}"
        async with await firnmq.open_async(path) as store:
            await store.create_topic("t", options={**_OPTIONS, "check.compressed": check})
            driver = store.local.manager.driver_of("t")
            assert isinstance(driver, EngineStorageAdapter)
            (shard,) = store.local.catalog.get("t").shard_names()

            async def write(number: int) -> None:
                for _ in range(_BATCHES_PER_WRITER):
                    await append_batch(driver, shard, bytearray(self.batch))

            await append_batch(driver, shard, bytearray(self.batch))
            return self._mebibytes / await run_tasks(write, _WRITER_COUNT)


@benchmark("append_checked", unit="MiB/s")
def append_checked(run: Run) -> Measured:
    """Batches of 500 KB before compression, 8 writers, page cache; the baseline has no check.

    The figures are those of lz4; the ratios of the other codecs are in `extra`.
    """
    extra: dict[str, float | int | str] = {}
    measured = {
        codec: run.alternate(ours=appends.checked, baseline=appends.unchecked)
        for codec in Compression
        if codec
        for appends in [_Appends(run.scratch(), codec)]
    }
    for codec, each in measured.items():
        name = codec.name.lower()
        assert each.ratio is not None
        extra |= {f"{name}_mib_s": each.value, f"{name}_ratio": each.ratio}
    lz4 = measured[Compression.LZ4]
    return Measured(value=lz4.value, baseline=lz4.baseline, extra={**lz4.extra, **extra})
