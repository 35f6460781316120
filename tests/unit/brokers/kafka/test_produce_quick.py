"""Produce requests that go the short way, among others that do not: order, refusals, ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.connection import KafkaConnection
from firnmq.brokers.kafka.protocol import ErrorCode, Message, RequestHeader
from firnmq.brokers.kafka.protocol.codec import decode_response, encode_request
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersionsRequest
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from firnmq.config import Durability, TopicConfig
from firnmq.record import NewRecord, encode
from firnmq.server.node import Node
from firnmq.server.settings import NodeConfig

TOPIC = "orders"
VERSION = 9


class Transport:
    """Takes what a connection writes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.was_written = asyncio.Event()
        self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1)

    def write(self, data: bytes) -> None:
        self.written += data
        self.was_written.set()

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.written += part
        self.was_written.set()

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Stage:
    """One connection to a real broker, fed by hand."""

    def __init__(self, node: Node) -> None:
        self.node = node
        broker = node.broker
        self.transport = Transport()
        self.connection = KafkaConnection(
            broker,
            node.config.kafka,
            budget=broker.budget,
            buffers=broker._buffers,
            statistics=broker.statistics,
        )
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self._sent: dict[int, tuple[int, int]] = {}

    @property
    def storage(self):  # type: ignore[no-untyped-def]
        return self.node.broker._produce._storage

    async def create(self, shards: int = 1, **config: object) -> None:
        options = {"durability": Durability.OS, "index_key": False, "index_tag": False, **config}
        await self.storage.manager.create_topic(TOPIC, shards, TopicConfig(**options))  # type: ignore[arg-type]

    def request(self, correlation_id: int, api_key: int, message: Message) -> bytes:
        version = VERSION if api_key == 0 else 0
        self._sent[correlation_id] = (api_key, version)
        header = RequestHeader(
            api_key=api_key, api_version=version, correlation_id=correlation_id, client_id="me"
        )
        return b"".join(bytes(part) for part in encode_request(header, message))  # type: ignore[arg-type]

    def produce(
        self, correlation_id: int, batch: bytes, *, index: int = 0, acks: int = -1
    ) -> bytes:
        data = PartitionProduceData(index=index, records=batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=60_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
        )
        return self.request(correlation_id, 0, request)

    def feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            buffer = self.connection.get_buffer(-1)
            assert buffer, "the transport needs room"
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            self.connection.buffer_updated(count)
            rest = rest[count:]

    async def answers(self, count: int) -> list[tuple[int, Message]]:
        """The next answers, in the order they were written."""
        found: list[tuple[int, Message]] = []
        while True:
            self.transport.was_written.clear()
            while len(self.transport.written) >= 4:
                size = int.from_bytes(self.transport.written[:4], "big")
                if len(self.transport.written) < 4 + size:
                    break
                frame = bytes(self.transport.written[4 : 4 + size])
                del self.transport.written[: 4 + size]
                api_key, version = self._sent[int.from_bytes(frame[:4], "big")]
                found.append(decode_response(api_key, version, frame))
            if len(found) >= count:
                assert len(found) == count
                return found
            await asyncio.wait_for(self.transport.was_written.wait(), 60)


def batch_of(*values: bytes, producer: tuple[int, int] | None = None) -> bytes:
    made = encode([NewRecord(value=value) for value in values], now_ms=1)
    if producer is not None:
        from firnmq.record import crc32c, parse_header

        header = parse_header(made)._replace(
            producer_id=producer[0], producer_epoch=0, base_sequence=producer[1]
        )
        packed = bytearray(header.pack() + bytes(made[61:]))
        crc = crc32c(bytes(packed[21:]))
        packed[17:21] = crc.to_bytes(4, "big")
        return bytes(packed)
    return bytes(made)


def outcome(message: Message) -> tuple[int, int]:
    assert isinstance(message, ProduceResponse)
    (partition,) = message.responses[0].partition_responses
    return partition.error_code, partition.base_offset


def on_stage(path: Path, act: Callable[[Stage], Awaitable[None]], **limits: int) -> None:
    async def main() -> None:
        config = NodeConfig(kafka=KafkaConfig(port=0, **limits))  # type: ignore[arg-type]
        config = dataclasses.replace(config, admin=dataclasses.replace(config.admin, enabled=False))
        async with Node(path, config) as node:
            stage = Stage(node)
            await act(stage)
            stage.connection.connection_lost(None)

    asyncio.run(main())


def values_of(stage: Stage, shard: int = 0) -> Awaitable[list[bytes | None]]:
    async def read() -> list[bytes | None]:
        topic = stage.storage.topic(TOPIC)
        driver = stage.storage.manager.driver_of(TOPIC)
        page = await driver.read_by_offset(
            topic.shard_name(shard), 0, max_records=100_000, max_bytes=2**27
        )
        return [record.value for record in page]

    return read()


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


def test_the_short_way_is_taken(tmp_path: Path) -> None:
    """Else the tests here would say nothing of it."""

    async def act(stage: Stage) -> None:
        await stage.create()
        stage.feed(stage.produce(0, batch_of(b"first")))
        await stage.answers(1)
        assert stage.connection.produce_route is not None
        serving = stage.connection._begin

        async def refuse(frame: bytearray) -> bool:
            pytest.fail("a request went the long way")

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
        stage.connection.connection_lost(None)
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
        assert stage.connection._is_paused
        await stage.answers(5)
        assert not stage.connection._is_paused

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
        assert stage.node.broker.budget.used_bytes == 40_000_000

    on_stage(tmp_path, act, total_bytes_in_flight_max=64_000_000)
