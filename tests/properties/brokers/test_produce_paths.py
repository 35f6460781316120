"""Whatever clients send, the fast path and the slow one give the same answers and files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from firnmq.brokers.kafka.protocol.messages.produce_fetch import FetchResponse
from firnmq.disk import pool
from firnmq.engines import inline as engines_inline
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.append import PreparedBatch
from firnmq.record import Compression, NewRecord, crc32c, encode, parse_header
from tests.unit.brokers.kafka.stage import Stage, batch_of, on_stage

STEP_COUNT = 120
CONFIGS: list[dict[str, object]] = [
    {},
    {"expire_header": None},
    {"segment_bytes": 40_000},
    {"index_key": True},
    {"max_record_bytes": 500},
]


def random_batch(rng: random.Random, sequences: dict[int, int]) -> bytes:
    """Plain ones mostly; some of every other kind, and some that are damaged."""
    values = [rng.randbytes(rng.choice((0, 1, 20, 600))) for _ in range(rng.choice((1, 1, 2, 5)))]
    kind = rng.random()
    if kind < 0.6:
        return batch_of(*values)
    if kind < 0.65:
        return bytes(encode([NewRecord(value=bytes(9_000))], now_ms=1))
    if kind < 0.7:
        compression = rng.choice(list(Compression))
        return bytes(encode([NewRecord(value=b"c" * 50)], now_ms=1, compression=compression))
    if kind < 0.75:
        producer = rng.choice((5, 6))
        sequence = sequences.get(producer, 0)
        sequences[producer] = sequence + rng.choice((0, 1, 1, 2))
        return batch_of(b"counted", producer=(producer, sequence))
    if kind < 0.8:
        record = NewRecord(value=b"short-lived", expire_at_ms=rng.choice((1, 2**45)))
        return bytes(encode([record], now_ms=1))
    damaged = bytearray(batch_of(*values))
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.5:
        damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
    return bytes(damaged)


def frames_of(
    stage: Stage, rng: random.Random, step: int, sequences: dict[int, int]
) -> list[bytes]:
    version = 3 + step // 10 % 7
    return [
        stage.produce(
            100 * step + number,
            random_batch(rng, sequences),
            index=rng.choice((0, 0, 0, 0, 1, 7)),
            version=version,
        )
        for number in range(rng.choice((1, 1, 1, 2, 4)))
    ]


async def read_to(reader: Stage, offset: int, end: int, *, is_one: bool) -> bytes:
    """What the fetch that waits is answered, and those after it up to the end. What came together
    with other batches may be given out together or one by one; alone, the answer is the same."""
    frame, found = b"", b""
    while offset < end:
        (frame,) = await reader.frames(1)
        message = reader.decoded(frame)
        assert isinstance(message, FetchResponse)
        (partition,) = message.responses[0].partitions
        assert partition.error_code == 0
        records = bytes(partition.records)  # type: ignore[arg-type]
        found += records
        while records:
            header = parse_header(records)
            offset, records = header.next_offset, records[header.size_bytes :]
        if offset < end:
            reader.feed(reader.fetch(100_000 + offset, offset))
    return frame if is_one else found


def played(path: Path, seed: int, config: dict[str, object], *, is_fast: bool) -> list[bytes]:
    """Everything that a producer and a consumer that waits were answered, in order."""
    answers: list[bytes] = []

    async def act(stage: Stage) -> None:
        await stage.create(shards=2, **config)  # type: ignore[arg-type]
        reader = Stage(stage.node)
        if not is_fast:
            stage.node.broker.begin_now = lambda frame, client: None  # type: ignore[method-assign]
            stage.node.broker.begin_wait = lambda frame, client: None  # type: ignore[method-assign]
        rng, sequences = random.Random(seed), dict[int, int]()
        offset, waits, had_all = 0, False, False
        for step in range(STEP_COUNT):
            version = 4 + step // 30 % 9
            if not waits and rng.random() < 0.8:
                reader.feed(reader.fetch(step, offset, version=version))
                waits, had_all = True, (await stage.storage.bounds("orders", 0))[1] == offset
            frames = frames_of(stage, rng, step, sequences)
            stage.feed(b"".join(frames))
            answers.extend(await stage.frames(len(frames)))
            if waits:
                _, end = await stage.storage.bounds("orders", 0)
                waits = end == offset
                answers.append(
                    await read_to(reader, offset, end, is_one=had_all and len(frames) == 1)
                )
                offset = end
        reader.connection.connection_lost(None)
        stage.connection.shrink()
        assert stage.node.broker.budget.used_bytes == 0 or waits

    on_stage(path, act)
    return answers


def logs_of(path: Path) -> list[bytes]:
    """The bytes of each log. Where a segment ends depends on when its roll comes."""
    folders = {file.parent for file in path.rglob("*.log")}
    return sorted(
        b"".join(file.read_bytes() for file in sorted(folder.glob("*.log"))) for folder in folders
    )


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_both_paths_give_the_same(
    tmp_path: Path, seed: int, config: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, the event loop goes on to write by itself.
    monkeypatch.setattr(pool, "_INLINE_SLOW_S", 1e9)
    slow = played(tmp_path / "slow", seed, config, is_fast=False)
    inline_count = 0
    take_written = engines_inline._take_written

    def count(log: ShardLog, batch: PreparedBatch, base_offset: int) -> None:
        nonlocal inline_count
        inline_count += 1
        take_written(log, batch, base_offset)

    monkeypatch.setattr(engines_inline, "_take_written", count)
    fast = played(tmp_path / "fast", seed, config, is_fast=True)
    assert fast == slow
    assert logs_of(tmp_path / "fast") == logs_of(tmp_path / "slow")
    assert inline_count > 0
