"""A connection to a real broker that a test feeds by hand, and what it reads from it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.connections.connection import KafkaConnection
from firnmq.brokers.kafka.protocol import Message, RequestHeader
from firnmq.brokers.kafka.protocol.codec import decode_response, encode_request
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.config import Durability, StoreConfig, TopicConfig
from firnmq.disk.files import Buffer
from firnmq.engines import Acks
from firnmq.record import NewRecord, crc32c, encode, parse_header
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
        self.is_read = True
        self.left_bytes = 0
        """What the client has not read."""

    def get_write_buffer_size(self) -> int:
        return self.left_bytes

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

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

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
            pressure=broker.pressure,
            limits=broker.limits,
            statistics=broker.statistics,
        )
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self._sent: dict[int, tuple[int, int]] = {}
        self._is_lost = False

    def lose(self) -> None:
        """The client is gone. An event loop says so once, whatever the test does."""
        if not self._is_lost:
            self._is_lost = True
            self.connection.connection_lost(None)

    @property
    def storage(self):  # type: ignore[no-untyped-def]
        return self.node.broker._produce._storage

    async def create(self, shards: int = 1, **config: object) -> None:
        options = {"durability": Durability.OS, "index_key": False, "index_tag": False, **config}
        await self.storage.manager.create_topic(TOPIC, shards, TopicConfig(**options))  # type: ignore[arg-type]

    def request(
        self, correlation_id: int, api_key: int, message: Message, version: int | None = None
    ) -> bytes:
        if version is None:
            version = VERSION if api_key == 0 else 0
        self._sent[correlation_id] = (api_key, version)
        header = RequestHeader(
            api_key=api_key, api_version=version, correlation_id=correlation_id, client_id="me"
        )
        return b"".join(bytes(part) for part in encode_request(header, message))  # type: ignore[arg-type]

    def produce(
        self,
        correlation_id: int,
        batch: bytes,
        *,
        index: int = 0,
        acks: int = -1,
        version: int = VERSION,
        timeout_ms: int = 30_000,
    ) -> bytes:
        data = PartitionProduceData(index=index, records=batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
        )
        return self.request(correlation_id, 0, request, version)

    def fetch(
        self,
        correlation_id: int,
        offset: int,
        *,
        index: int = 0,
        version: int = 12,
        max_wait_ms: int = 20_000,
        min_bytes: int = 1,
        isolation_level: int = 1,
    ) -> bytes:
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1_000_000)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=50_000_000,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
        )
        return self.request(correlation_id, 1, request, version)

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
        frames = await self.frames(count)
        return [(int.from_bytes(frame[:4], "big"), self.decoded(frame)) for frame in frames]

    def decoded(self, frame: bytes) -> Message:
        api_key, version = self._sent[int.from_bytes(frame[:4], "big")]
        return decode_response(api_key, version, frame)[1]

    async def frames(self, count: int) -> list[bytes]:
        """The same, undecoded."""
        found: list[bytes] = []
        while True:
            self.transport.was_written.clear()
            while len(self.transport.written) >= 4:
                size = int.from_bytes(self.transport.written[:4], "big")
                if len(self.transport.written) < 4 + size:
                    break
                found.append(bytes(self.transport.written[4 : 4 + size]))
                del self.transport.written[: 4 + size]
            if len(found) >= count:
                assert len(found) == count
                return found
            await asyncio.wait_for(self.transport.was_written.wait(), 60)


async def append_to(storage: KafkaStorage, topic: str, partition: int, batch: Buffer) -> None:
    """Appends a batch to a partition, and waits for it."""
    deadline_s = time.monotonic() + 60
    await (await storage.submit(topic, partition, batch, Acks.ALL, deadline_s))


def batch_of(*values: bytes, producer: tuple[int, int] | None = None) -> bytes:
    made = encode([NewRecord(value=value) for value in values], now_ms=1)
    if producer is not None:
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


def on_stage(
    path: Path,
    act: Callable[[Stage], Awaitable[None]],
    *,
    store: StoreConfig | None = None,
    **limits: int,
) -> None:
    async def main() -> None:
        kafka = KafkaConfig(port=0, **limits)  # type: ignore[arg-type]
        config = NodeConfig(kafka=kafka) if store is None else NodeConfig(kafka=kafka, store=store)
        config = dataclasses.replace(config, admin=dataclasses.replace(config.admin, enabled=False))
        async with Node(path, config) as node:
            stage = Stage(node)
            await act(stage)
            stage.lose()

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
