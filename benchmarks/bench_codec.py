"""The codec: decoding against aiokafka's compiled record reader, and the calls of the hot paths.

Decoding is measured on a fetch of half a MiB in batches of a hundred records. Neither side checks
CRCs, since aiokafka's reader does not do so while it iterates. Ours gives columns in Arrow's
layout, values of 100 B copied together and values of 1 KiB as views of the batches; theirs gives
an object per record, its value copied. What it costs to hand ours to pyarrow, with values as views
and copied to be plain binary, and what it costs with the CRC, is reported as well.
"""

import time
from collections.abc import Callable

from aiokafka.record._crecords import DefaultRecordBatch

from benchmarks.harness import Bar, Better, Measured, Run, benchmark
from firnmq.record import (
    IS_COMPILED,
    NewRecord,
    collect,
    decode,
    encode,
    validate_header,
    walk,
)

FETCH_BYTES = 512 * 1024
BATCH_RECORDS = 100
ROUND_SECONDS = 0.15
NOW_MS = 1_700_000_000_000


def fetch(value_bytes: int) -> list[bytes]:
    """Batches of `BATCH_RECORDS` keyed records that make up one fetch."""
    batches: list[bytes] = []
    while sum(map(len, batches)) < FETCH_BYTES:
        base_offset = len(batches) * BATCH_RECORDS
        records = [
            NewRecord(
                value=bytes(value_bytes),
                key=b"key-%08d" % (base_offset + index),
                timestamp_ms=NOW_MS + index,
            )
            for index in range(BATCH_RECORDS)
        ]
        batches.append(bytes(encode(records, now_ms=NOW_MS, base_offset=base_offset)))
    return batches


def per_second(call: Callable[[], object], count: int) -> float:
    """How many millions of `count` things per call are done in a second."""
    return count / seconds(call) / 1e6


def seconds(call: Callable[[], object]) -> float:
    """Mean processor time of a call within one round.

    Nothing here waits, so on a quiet machine that is the time that passes, and on a busy one it
    leaves out the time of others.
    """
    calls = 0
    start = time.thread_time()
    while True:
        call()
        calls += 1
        elapsed = time.thread_time() - start
        if elapsed >= ROUND_SECONDS:
            return elapsed / calls


def decode_against_aiokafka(run: Run, value_bytes: int) -> Measured:
    batches = fetch(value_bytes)
    count = len(batches) * BATCH_RECORDS
    assert len(decode(batches)) == count

    def theirs() -> None:
        for batch in batches:
            for record in DefaultRecordBatch(batch):
                _ = record.offset, record.timestamp, record.key, record.value

    def best(call: Callable[[], object]) -> float:
        return max(per_second(call, count) for _ in range(5))

    return run.alternate(
        ours=lambda: per_second(lambda: decode(batches, verify=False), count),
        baseline=lambda: per_second(theirs, count),
        rounds=9,
        extra={
            "with_crc": best(lambda: decode(batches)),
            "to_arrow_views": best(lambda: decode(batches, verify=False).to_arrow(views=True)),
            "to_arrow": best(lambda: decode(batches, verify=False).to_arrow()),
        },
    )


@benchmark("codec_decode", unit="M records/s", bar=Bar.ratio_at_least(5))
def codec_decode(run: Run) -> Measured:
    """Records of 100 B and of 1 KiB; the size with the smaller ratio counts."""
    small, large = (decode_against_aiokafka(run, size) for size in (100, 1024))
    assert small.ratio is not None
    assert large.ratio is not None
    worse = min(small, large, key=lambda measured: measured.ratio or 0)
    extra: dict[str, float | str] = {"compiled": str(IS_COMPILED)}
    for size, measured in (("100b", small), ("1kib", large)):
        extra[f"ratio_{size}"] = measured.ratio or 0
        extra[f"m_records_s_{size}"] = measured.value
        for name in ("with_crc", "to_arrow_views", "to_arrow"):
            extra[f"{name}_{size}"] = measured.extra[name]
    return Measured(value=worse.value, baseline=worse.baseline, ratio=worse.ratio, extra=extra)


@benchmark("codec_encode", unit="µs", better=Better.LOWER)
def codec_encode(run: Run) -> Measured:
    """A hundred records of 1 KiB into a batch."""
    records = [NewRecord(value=bytes(1024)) for _ in range(100)]
    return run.repeat(lambda: 1e6 * seconds(lambda: encode(records, now_ms=NOW_MS)))


@benchmark("codec_collect", unit="µs", better=Better.LOWER)
def codec_collect(run: Run) -> Measured:
    """Keys and tags of a thousand records with one of each."""
    records = [
        NewRecord(value=bytes(100), key=b"key-%d" % index, tags=(f"tag-{index % 50}",))
        for index in range(1_000)
    ]
    batch = bytes(encode(records, now_ms=NOW_MS))
    return run.repeat(lambda: 1e6 * seconds(lambda: collect(batch)))


@benchmark("codec_walk", unit="µs", better=Better.LOWER)
def codec_walk(run: Run) -> Measured:
    """The headers of a MiB in ten batches, without CRC as for raw reads."""
    records = [NewRecord(value=bytes(1024)) for _ in range(100)]
    buffer = bytes(encode(records, now_ms=NOW_MS)) * 10
    with_crc = 1e6 * min(seconds(lambda: walk(buffer)) for _ in range(5))
    return run.repeat(
        lambda: 1e6 * seconds(lambda: walk(buffer, verify=False)), extra={"with_crc": with_crc}
    )


@benchmark("codec_validate_header", unit="µs", better=Better.LOWER)
def codec_validate_header(run: Run) -> Measured:
    """What every produced batch of 100 KiB is put through, CRC included."""
    batch = bytes(encode([NewRecord(value=bytes(1024)) for _ in range(100)], now_ms=NOW_MS))
    return run.repeat(lambda: 1e6 * seconds(lambda: validate_header(batch)))
