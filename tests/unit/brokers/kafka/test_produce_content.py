"""What is in a batch is judged before it is acknowledged, whichever way the request goes."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import pytest

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    PartitionProduceResponse,
    ProduceResponse,
)
from firnmq.config import CleanupPolicy
from firnmq.record import Compression, NewRecord, compress, encode
from firnmq.record.batch import DECOMPRESSED_BYTES_MAX
from tests.unit.brokers.kafka.stage import Stage, batch_of, on_stage, outcome, values_of
from tests.unit.record.batches import made, record

CODECS = list(Compression)[1:]
NOTHING_READS_RECORDS = {"expire_header": None}
LARGE_BYTES = 3 * 1024 * 1024
MIB = 1024 * 1024


def refusal(message: object) -> PartitionProduceResponse:
    assert isinstance(message, ProduceResponse)
    (partition,) = message.responses[0].partition_responses
    return partition


def judging_threads() -> int:
    return sum(each.name.startswith("firn-judge") for each in threading.enumerate())


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_refused_by_both_paths(tmp_path: Path, codec: Compression) -> None:
    garbage = made(b"not compressed " * 9, attributes=codec)
    lie = made(record(0), record(1), record_count=3, last_offset_delta=2, compression=codec)
    good = made(record(0), record(1), compression=codec)

    async def act(stage: Stage) -> None:
        await stage.create(**NOTHING_READS_RECORDS)
        # 1. The slow path: no request before them.
        for number, bad in enumerate((garbage, lie)):
            stage.feed(stage.produce(number, bad))
            ((_, refused),) = await stage.answers(1)
            assert outcome(refused) == (ErrorCode.INVALID_RECORD, -1)
        # 2. The fast path: among requests like the one before.
        stage.feed(stage.produce(2, good))
        ((_, stored),) = await stage.answers(1)
        assert outcome(stored) == (0, 0)
        assert stage.connection.produce_route is not None
        stage.feed(b"".join(stage.produce(3 + n, b) for n, b in enumerate((garbage, lie, good))))
        answers = [outcome(message) for _, message in await stage.answers(3)]
        assert answers == [(87, -1), (87, -1), (0, 2)]
        assert await values_of(stage) == [b"v"] * 4

    on_stage(tmp_path, act)


@pytest.mark.parametrize("codec", list(Compression))
def test_large_batches_are_judged_by_threads_and_keep_their_order(
    tmp_path: Path, codec: Compression
) -> None:
    large = bytes(
        encode([NewRecord(value=bytes(LARGE_BYTES // 8))] * 8, now_ms=1, compression=codec)
    )
    broken = made(bytes(compress(codec, bytes(LARGE_BYTES))), attributes=codec)

    async def act(stage: Stage) -> None:
        await stage.create(**NOTHING_READS_RECORDS)
        small = made(record(0), compression=codec)
        stage.feed(stage.produce(0, small))
        await stage.answers(1)
        assert judging_threads() == 0, "a small batch is not worth a thread"
        batches = (large, small, broken, large, small)
        stage.feed(b"".join(stage.produce(1 + n, batch) for n, batch in enumerate(batches)))
        answers = [outcome(message) for _, message in await stage.answers(5)]
        assert answers == [(0, 1), (0, 9), (87, -1), (0, 10), (0, 18)]
        assert judging_threads() > 0

    on_stage(tmp_path, act)


@pytest.mark.parametrize("codec", CODECS)
def test_a_decompression_bomb_is_refused_and_its_memory_released(
    tmp_path: Path, codec: Compression
) -> None:
    payload = compress(codec, bytes(DECOMPRESSED_BYTES_MAX + 1))
    bomb = made(bytes(payload), attributes=codec)
    del payload

    async def act(stage: Stage) -> None:
        await stage.create(**NOTHING_READS_RECORDS)
        request = stage.produce(0, bomb)
        tracemalloc.start()
        try:
            stage.feed(request)
            ((_, refused),) = await stage.answers(1)
            left, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert outcome(refused) == (ErrorCode.MESSAGE_TOO_LARGE, -1)
        assert peak < DECOMPRESSED_BYTES_MAX + 2 * len(bomb) + MIB
        assert left < 2 * len(bomb) + MIB

    on_stage(tmp_path, act)


def test_a_refusal_says_which_records_are_at_fault(tmp_path: Path) -> None:
    keyless = made(record(0, key=b"k"), record(1), record(2))

    async def act(stage: Stage) -> None:
        await stage.create(cleanup_policy=CleanupPolicy.COMPACT)
        for number, version in enumerate((7, 8, 9, 9)):
            stage.feed(stage.produce(number, keyless, version=version))
            ((_, message),) = await stage.answers(1)
            partition = refusal(message)
            assert partition.error_code == ErrorCode.INVALID_RECORD
            at_fault = [1, 2] if version >= 8 else []
            assert [each.batch_index for each in partition.record_errors] == at_fault
            for each in partition.record_errors:
                assert "no key" in (each.batch_index_error_message or "")
        # A batch that is no batch has no records to name.
        stage.feed(stage.produce(9, batch_of(b"v")[:-1]))
        ((_, message),) = await stage.answers(1)
        assert refusal(message).record_errors == ()
        assert refusal(message).error_message

    on_stage(tmp_path, act)


def test_a_producer_without_sequence_numbers_is_refused(tmp_path: Path) -> None:
    """It was acknowledged, and everything after its first batch was dropped as a repetition."""

    async def act(stage: Stage) -> None:
        await stage.create()
        uncounted = batch_of(b"v", producer=(7, -1))
        for number in range(3):
            stage.feed(stage.produce(number, uncounted))
            ((_, message),) = await stage.answers(1)
            assert outcome(message) == (ErrorCode.INVALID_RECORD, -1)
        stage.feed(stage.produce(3, batch_of(b"counted", producer=(7, 0))))
        ((_, message),) = await stage.answers(1)
        assert outcome(message) == (0, 0)

    on_stage(tmp_path, act)
