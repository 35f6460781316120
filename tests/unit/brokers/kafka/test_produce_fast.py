"""Produce requests on the fast path, among others that are not: order, refusals, ends."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from pathlib import Path

import pytest

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersionsRequest
from firnmq.config import Durability
from firnmq.disk import FileCache
from firnmq.engines import deadlines
from tests.unit.brokers.kafka.stage import TOPIC, Stage, batch_of, on_stage, outcome, values_of


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("storage_type", ["EngineMemory", "EngineRocksDB", "EngineSegment"])
def test_the_order_of_requests_is_kept(
    tmp_path: Path, durability: Durability, storage_type: str
) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(shards=2, durability=durability, storage_type=storage_type)
        expected: list[tuple[int, int]] = []
        values: list[list[bytes]] = [[], []]
        data, number = b"", 0
        for turn in range(12):
            for index in (0, 1, 1):
                batch = [b"%d-%d" % (number, part) for part in range(1 + number % 3)]
                if number == 20:
                    batch = [bytes(300_000)]  # Larger than the buffer of small frames.
                expected.append((number, len(values[index])))
                values[index] += batch
                data += stage.produce(number, batch_of(*batch), index=index)
                number += 1
            if turn % 4 == 3:  # Another API among them is answered in its place.
                data += stage.request(number, 18, ApiVersionsRequest())
                expected.append((number, -1))
                number += 1
        stage.feed(data)
        answers = await stage.answers(len(expected))
        assert [correlation_id for correlation_id, _ in answers] == [each[0] for each in expected]
        for (_, message), (_, offset) in zip(answers, expected, strict=True):
            if offset >= 0:
                assert outcome(message) == (0, offset)
        for shard in (0, 1):
            assert await values_of(stage, shard) == values[shard]

    on_stage(tmp_path, act)


def test_the_fast_path_is_taken(tmp_path: Path) -> None:
    """Else the tests here would say nothing of it."""

    async def act(stage: Stage) -> None:
        await stage.create()
        stage.feed(stage.produce(0, batch_of(b"first")))
        await stage.answers(1)
        assert stage.connection.produce_route is not None
        serving = stage.connection._begin

        async def refuse(frame: bytearray) -> bool:
            pytest.fail("a request took the slow path")

        stage.connection._begin = refuse  # type: ignore[method-assign]
        stage.feed(b"".join(stage.produce(number, batch_of(b"x")) for number in range(1, 40)))
        answers = await stage.answers(39)
        assert [outcome(message) for _, message in answers] == [(0, at) for at in range(1, 40)]
        stage.connection._begin = serving  # type: ignore[method-assign]

    on_stage(tmp_path, act)


def test_a_bad_batch_is_refused_and_the_next_one_stored(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        good = batch_of(b"good")
        broken = bytearray(good)
        broken[-1] ^= 1
        stage.feed(stage.produce(0, good))
        await stage.answers(1)
        stage.feed(stage.produce(1, bytes(broken)) + stage.produce(2, good))
        (_, refused), (_, stored) = await stage.answers(2)
        assert outcome(refused) == (ErrorCode.INVALID_RECORD, -1)
        assert outcome(stored) == (0, 1)

    on_stage(tmp_path, act)


def test_unknown_partitions_and_deleted_topics_are_refused(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        good = batch_of(b"good")
        stage.feed(stage.produce(0, good))
        await stage.answers(1)
        stage.feed(stage.produce(1, good, index=1))
        assert outcome((await stage.answers(1))[0][1])[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await stage.storage.manager.delete_topic(TOPIC)
        stage.feed(stage.produce(2, good))
        assert outcome((await stage.answers(1))[0][1])[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await stage.create()
        stage.feed(stage.produce(3, good))
        assert outcome((await stage.answers(1))[0][1]) == (0, 0), "the topic was made anew"

    on_stage(tmp_path, act)


def test_options_that_change_hold_at_once(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        good = batch_of(bytes(5_000))
        stage.feed(stage.produce(0, good))
        await stage.answers(1)
        topic = stage.storage.topic(TOPIC)
        smaller = dataclasses.replace(topic.config, max_batch_bytes=4_000, max_record_bytes=4_000)
        await stage.storage.manager.reconfigure_topic(TOPIC, smaller)
        stage.feed(stage.produce(1, good))
        assert outcome((await stage.answers(1))[0][1])[0] == ErrorCode.MESSAGE_TOO_LARGE

    on_stage(tmp_path, act)


def test_repeated_and_missing_sequences_are_noticed(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        first, second = (batch_of(b"v", producer=(9, at)) for at in (0, 1))
        gap = batch_of(b"v", producer=(9, 5))
        stage.feed(stage.produce(0, first))
        await stage.answers(1)
        stage.feed(
            stage.produce(1, second)
            + stage.produce(2, first)
            + stage.produce(3, gap)
            + stage.produce(4, second)
        )
        outcomes = [outcome(message) for _, message in await stage.answers(4)]
        out_of_order = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert outcomes == [(0, 1), (0, 0), out_of_order, (0, 1)]
        assert await values_of(stage) == [b"v", b"v"]

    on_stage(tmp_path, act)


def test_without_acknowledgement_there_is_no_answer(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        batch = batch_of(b"quiet")
        for number in range(3):
            stage.feed(stage.produce(number, batch, acks=0))
            stage.feed(stage.request(9, 18, ApiVersionsRequest()))
            ((correlation_id, _),) = await stage.answers(1)
            assert correlation_id == 9
        assert await values_of(stage) == [b"quiet"] * 3
        assert stage.node.broker.budget.used_bytes == 0

    on_stage(tmp_path, act)


def test_a_client_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(durability=Durability.FSYNC)
        batch = batch_of(b"last words")
        stage.feed(stage.produce(0, batch))
        await stage.answers(1)
        stage.feed(b"".join(stage.produce(number, batch) for number in range(1, 31)))
        stage.lose()
        await stage.connection.wait_answered()
        assert stage.node.broker.budget.used_bytes == 0
        assert await values_of(stage) == [b"last words"] * 31

    on_stage(tmp_path, act)


def test_a_client_with_too_much_in_flight_is_not_read(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(durability=Durability.FSYNC)
        batch = batch_of(b"one")
        stage.feed(stage.produce(0, batch))
        await stage.answers(1)
        stage.feed(b"".join(stage.produce(number, batch) for number in range(1, 6)))
        assert not stage.transport.is_read
        await stage.answers(5)
        assert stage.transport.is_read

    on_stage(tmp_path, act, requests_in_flight_max=4)


def test_large_requests_among_small_ones_while_others_hold_much(tmp_path: Path) -> None:
    """A large one begins in a buffer that holds more of it than it is first given room for."""

    async def act(stage: Stage) -> None:
        await stage.create()
        large = batch_of(bytes(900_000))
        stage.node.broker.budget.take(40_000_000)  # Others', more than half of all.
        for number in range(6):
            stage.feed(
                b"".join(
                    stage.produce(10 * number + at, batch_of(b"x" * 60_000)) for at in range(6)
                )
                + stage.produce(10 * number + 6, large)
            )
            answers = await stage.answers(7)
            assert [outcome(message)[0] for _, message in answers] == [0] * 7
        assert not stage.transport.is_closed
        assert len(await values_of(stage)) == 42
        stage.connection.shrink()
        assert stage.node.broker.budget.used_bytes == 40_000_000

    on_stage(tmp_path, act, total_bytes_in_flight_max=64_000_000)


class HungDevice:
    """Writes of segment files wait until `answer`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer = threading.Event()
        self.is_asked = threading.Event()
        write_at = FileCache.write_at

        def wait(files: FileCache, *arguments: object, **options: bool) -> int:
            self.is_asked.set()
            self.answer.wait()
            return write_at(files, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(FileCache, "write_at", wait)


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_request_whose_time_is_over_is_told_so_and_can_be_sent_again(
    tmp_path: Path, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The device hangs. 2. The first request is under way, the second is queued: both are told
    that their time is over. 3. The device answers, and the idempotent producer repeats both: the
    first is found stored, the second is stored now."""
    monkeypatch.setattr(deadlines, "SWEEP_S", 0.005)

    async def act(stage: Stage) -> None:
        await stage.create(durability=Durability.FSYNC)
        first, second = (batch_of(b"v%d" % at, producer=(9, at)) for at in (0, 1))
        for number in range(2):
            stage.feed(stage.produce(number, batch_of(b"plain")))
            await stage.answers(1)
        if not is_fast:
            stage.node.broker.begin_now = lambda frame, client: None  # type: ignore[method-assign]
        device = HungDevice(monkeypatch)
        try:
            stage.feed(stage.produce(2, first))
            await asyncio.to_thread(device.is_asked.wait)
            stage.feed(stage.produce(3, second))
            hour_later = time.monotonic() + 3_600
            monkeypatch.setattr(deadlines, "monotonic", lambda: hour_later)
            found = [outcome(message) for _, message in await stage.answers(2)]
        finally:
            device.answer.set()
            monkeypatch.setattr(deadlines, "monotonic", time.monotonic)
        assert found == [(ErrorCode.REQUEST_TIMED_OUT, -1)] * 2
        stage.feed(stage.produce(4, first) + stage.produce(5, second))
        found = [outcome(message) for _, message in await stage.answers(2)]
        assert found == [(0, 2), (0, 3)]
        assert await values_of(stage) == [b"plain", b"plain", b"v0", b"v1"]
        assert stage.node.broker.budget.used_bytes == 0

    on_stage(tmp_path, act)


def test_a_request_without_a_time_is_given_the_usual_one(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(durability=Durability.FSYNC)
        for number in range(4):
            stage.feed(stage.produce(number, batch_of(b"v"), timeout_ms=0))
            assert outcome((await stage.answers(1))[0][1]) == (0, number)

    on_stage(tmp_path, act)
