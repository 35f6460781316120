"""The three clients behind one face: write rows, read rows, ask where they are.

Each has its own way to fail; a refused size is the one failure all must name alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.codec
import kafka.errors

from tests.integration.kafka import aio
from tests.integration.kafka.rows import Row, Seen

READ_TIMEOUT_S = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")


class TooLarge(Exception):
    """The broker refused a record for its size."""


class Writer(Protocol):
    def write(self, topic: str, rows: Sequence[Row]) -> list[int]:
        """Returns the offsets once all rows are acknowledged; -1 where acks=0 hides them."""


class Client(Protocol):
    name: str

    def can_write(self, row: Row) -> bool:
        """Some producers refuse records that the protocol allows."""

    def codecs(self) -> tuple[str, ...]: ...

    def writer(
        self, address: str, *, codec: str = "none", acks: str = "all", idempotent: bool = False
    ) -> contextlib.AbstractContextManager[Writer]: ...

    def read(
        self, address: str, topic: str, count: int, *, start: int = 0, partitions: int = 1
    ) -> list[Seen]:
        """The first records from an offset on, of partitions 0 to n-1."""

    def read_to_end(self, address: str, topic: str, *, start: int = 0) -> list[Seen]:
        """Reads partition 0 from an offset until the client itself says that it is at the end."""

    def read_from_end(
        self, address: str, topic: str, count: int, at_end: Callable[[], object]
    ) -> list[Seen]:
        """Goes to the end of partition 0, calls `at_end`, and reads what has come then."""

    def bounds(self, address: str, topic: str, partition: int = 0) -> tuple[int, int]: ...

    def offset_at(self, address: str, topic: str, timestamp_ms: int) -> int | None:
        """First offset of partition 0 that is not older."""


class ConfluentWriter:
    def __init__(self, producer: confluent_kafka.Producer) -> None:
        self._producer = producer

    def write(self, topic: str, rows: Sequence[Row]) -> list[int]:
        offsets = [-1] * len(rows)
        errors: list[confluent_kafka.KafkaError] = []

        def report(index: int) -> Any:
            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    errors.append(error)
                elif message.offset() is not None:
                    offsets[index] = message.offset()

            return delivered

        for index, row in enumerate(rows):
            self._producer.produce(
                topic,
                value=row.value,
                key=row.key,
                headers=list(row.headers),
                timestamp=row.timestamp_ms,
                partition=row.partition,
                on_delivery=report(index),
            )
        assert self._producer.flush(READ_TIMEOUT_S) == 0
        for error in errors:
            if error.code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                raise TooLarge(str(error))
            raise confluent_kafka.KafkaException(error)
        return offsets


class Confluent:
    name = "confluent"

    def can_write(self, row: Row) -> bool:
        return True

    def codecs(self) -> tuple[str, ...]:
        return CODECS

    @contextlib.contextmanager
    def writer(
        self, address: str, *, codec: str = "none", acks: str = "all", idempotent: bool = False
    ) -> Iterator[Writer]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 2,
                "message.max.bytes": 20_000_000,
            }
        )
        yield ConfluentWriter(producer)
        producer.flush(READ_TIMEOUT_S)

    @contextlib.contextmanager
    def _consumer(self, address: str, **more: object) -> Iterator[confluent_kafka.Consumer]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"reader-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                **{key.replace("_", "."): value for key, value in more.items()},
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def read(
        self, address: str, topic: str, count: int, *, start: int = 0, partitions: int = 1
    ) -> list[Seen]:
        seen: list[Seen] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        with self._consumer(address) as consumer:
            consumer.assign(
                [confluent_kafka.TopicPartition(topic, i, start) for i in range(partitions)]
            )
            while len(seen) < count and time.monotonic() < deadline:
                # It returns as soon as it has so many, else only after its time-out.
                for message in consumer.consume(min(count - len(seen), 500), 0.2):
                    if message.error() is None:
                        seen.append(_from_confluent(message))
                    elif message.error().code() != confluent_kafka.KafkaError._PARTITION_EOF:
                        raise confluent_kafka.KafkaException(message.error())
        return seen[:count]

    def read_to_end(self, address: str, topic: str, *, start: int = 0) -> list[Seen]:
        seen: list[Seen] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        # The client notices the end when a fetch at the end is answered.
        with self._consumer(address, fetch_wait_max_ms=20) as consumer:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
            while time.monotonic() < deadline:
                for message in consumer.consume(500, 0.02):
                    if message.error() is None:
                        seen.append(_from_confluent(message))
                    elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        return seen
                    else:
                        raise confluent_kafka.KafkaException(message.error())
        raise AssertionError("the client did not come to the end")

    def read_from_end(
        self, address: str, topic: str, count: int, at_end: Callable[[], object]
    ) -> list[Seen]:
        seen: list[Seen] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        with self._consumer(address) as consumer:
            end = confluent_kafka.OFFSET_END
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, end)])
            while time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if message.error() is None:
                    seen.append(_from_confluent(message))
                    if len(seen) == count:
                        break
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    if not seen:
                        at_end()  # The client has found the end.
                        at_end = _nothing
                else:
                    raise confluent_kafka.KafkaException(message.error())
        return seen

    def bounds(self, address: str, topic: str, partition: int = 0) -> tuple[int, int]:
        with self._consumer(address) as consumer:
            where = confluent_kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(where, timeout=READ_TIMEOUT_S)
            return low, high

    def offset_at(self, address: str, topic: str, timestamp_ms: int) -> int | None:
        with self._consumer(address) as consumer:
            where = confluent_kafka.TopicPartition(topic, 0, timestamp_ms)
            (found,) = consumer.offsets_for_times([where], timeout=READ_TIMEOUT_S)
            return found.offset if found.offset >= 0 else None


def _nothing() -> None:
    """What is left to do at the end the second time."""


def _from_confluent(message: Any) -> Seen:
    return Seen(
        row=Row(
            key=message.key(),
            value=message.value(),
            headers=tuple(message.headers() or ()),
            timestamp_ms=message.timestamp()[1],
            partition=message.partition(),
        ),
        offset=message.offset(),
    )


class KafkaPythonWriter:
    def __init__(self, producer: kafka.KafkaProducer) -> None:
        self._producer = producer

    def write(self, topic: str, rows: Sequence[Row]) -> list[int]:
        sent = [
            self._producer.send(
                topic,
                value=row.value,
                key=row.key,
                headers=list(row.headers),
                timestamp_ms=row.timestamp_ms,
                partition=row.partition,
            )
            for row in rows
        ]
        try:
            return [each.get(READ_TIMEOUT_S).offset for each in sent]
        except (
            kafka.errors.MessageSizeTooLargeError,
            kafka.errors.RecordListTooLargeError,
        ) as error:
            raise TooLarge(str(error)) from error


class KafkaPython:
    name = "kafka-python"

    def can_write(self, row: Row) -> bool:
        is_empty = row.key is None and row.value is None
        return not is_empty and all(value is not None for _, value in row.headers)

    def codecs(self) -> tuple[str, ...]:
        return tuple(
            codec for codec in CODECS if codec == "none" or getattr(kafka.codec, f"has_{codec}")()
        )

    @contextlib.contextmanager
    def writer(
        self, address: str, *, codec: str = "none", acks: str = "all", idempotent: bool = False
    ) -> Iterator[Writer]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=20_000_000,
        )
        try:
            yield KafkaPythonWriter(producer)
        finally:
            producer.close(timeout=READ_TIMEOUT_S)

    @contextlib.contextmanager
    def _consumer(self, address: str) -> Iterator[kafka.KafkaConsumer]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="none"
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def read(
        self, address: str, topic: str, count: int, *, start: int = 0, partitions: int = 1
    ) -> list[Seen]:
        seen: list[Seen] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        with self._consumer(address) as consumer:
            wanted = [kafka.TopicPartition(topic, index) for index in range(partitions)]
            consumer.assign(wanted)
            for each in wanted:
                consumer.seek(each, start)
            while len(seen) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=200).values():
                    seen += map(_from_record, records)
        return seen[:count]

    def read_to_end(self, address: str, topic: str, *, start: int = 0) -> list[Seen]:
        seen: list[Seen] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        with self._consumer(address) as consumer:
            where = kafka.TopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek(where, start)
            end = consumer.end_offsets([where])[where]
            while consumer.position(where) < end:
                assert time.monotonic() < deadline, "the client did not come to the end"
                for records in consumer.poll(timeout_ms=200).values():
                    seen += map(_from_record, records)
        return seen

    def read_from_end(
        self, address: str, topic: str, count: int, at_end: Callable[[], object]
    ) -> list[Seen]:
        seen: list[Seen] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        with self._consumer(address) as consumer:
            where = kafka.TopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek_to_end(where)
            consumer.position(where)  # Waits until the client has asked.
            at_end()
            while len(seen) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=200).values():
                    seen += map(_from_record, records)
        return seen

    def bounds(self, address: str, topic: str, partition: int = 0) -> tuple[int, int]:
        with self._consumer(address) as consumer:
            where = kafka.TopicPartition(topic, partition)
            low, high = consumer.beginning_offsets([where]), consumer.end_offsets([where])
            return low[where], high[where]

    def offset_at(self, address: str, topic: str, timestamp_ms: int) -> int | None:
        with self._consumer(address) as consumer:
            where = kafka.TopicPartition(topic, 0)
            found = consumer.offsets_for_times({where: timestamp_ms})[where]
            return None if found is None else found.offset


def _from_record(record: Any) -> Seen:
    """kafka-python and aiokafka name the fields alike."""
    return Seen(
        row=Row(
            key=record.key,
            value=record.value,
            headers=tuple((name, value) for name, value in record.headers),
            timestamp_ms=record.timestamp,
            partition=record.partition,
        ),
        offset=record.offset,
    )


class AioWriter:
    def __init__(self, producer: aiokafka.AIOKafkaProducer, runner: asyncio.Runner) -> None:
        self._producer = producer
        self._runner = runner

    def write(self, topic: str, rows: Sequence[Row]) -> list[int]:
        return self._runner.run(self._write(topic, rows))

    async def _write(self, topic: str, rows: Sequence[Row]) -> list[int]:
        try:
            sent = [
                await self._producer.send(
                    topic,
                    value=row.value,
                    key=row.key,
                    headers=list(row.headers),
                    timestamp_ms=row.timestamp_ms,
                    partition=row.partition,
                )
                for row in rows
            ]
            async with asyncio.timeout(READ_TIMEOUT_S):
                done = await asyncio.gather(*sent)
        except aiokafka.errors.MessageSizeTooLargeError as error:
            raise TooLarge(str(error)) from error
        return [each.offset if each is not None else -1 for each in done]


class AioKafka:
    name = "aiokafka"

    def can_write(self, row: Row) -> bool:
        return row.key is not None or row.value is not None

    def codecs(self) -> tuple[str, ...]:
        return tuple(
            codec
            for codec in CODECS
            if codec == "none" or getattr(aiokafka.codec, f"has_{codec}")()
        )

    @contextlib.contextmanager
    def writer(
        self, address: str, *, codec: str = "none", acks: str = "all", idempotent: bool = False
    ) -> Iterator[Writer]:
        async def make() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_request_size=20_000_000,
            )
            await producer.start()
            return producer

        with asyncio.Runner() as runner:
            producer = runner.run(make())
            try:
                yield AioWriter(producer, runner)
            finally:
                runner.run(producer.stop())
                runner.run(aio.close_forgotten())

    @contextlib.asynccontextmanager
    async def _consumer(self, address: str) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    def read(
        self, address: str, topic: str, count: int, *, start: int = 0, partitions: int = 1
    ) -> list[Seen]:
        async def run() -> list[Seen]:
            seen: list[Seen] = []
            deadline = time.monotonic() + READ_TIMEOUT_S
            async with self._consumer(address) as consumer:
                wanted = [aiokafka.TopicPartition(topic, index) for index in range(partitions)]
                consumer.assign(wanted)
                for each in wanted:
                    consumer.seek(each, start)
                while len(seen) < count and time.monotonic() < deadline:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        seen += map(_from_record, records)
            return seen[:count]

        return aio.run(run())

    def read_to_end(self, address: str, topic: str, *, start: int = 0) -> list[Seen]:
        async def run() -> list[Seen]:
            seen: list[Seen] = []
            async with self._consumer(address) as consumer:
                where = aiokafka.TopicPartition(topic, 0)
                consumer.assign([where])
                consumer.seek(where, start)
                end = (await consumer.end_offsets([where]))[where]
                async with asyncio.timeout(READ_TIMEOUT_S):
                    while await consumer.position(where) < end:
                        for records in (await consumer.getmany(timeout_ms=200)).values():
                            seen += map(_from_record, records)
            return seen

        return aio.run(run())

    def read_from_end(
        self, address: str, topic: str, count: int, at_end: Callable[[], object]
    ) -> list[Seen]:
        async def run() -> list[Seen]:
            seen: list[Seen] = []
            async with self._consumer(address) as consumer:
                where = aiokafka.TopicPartition(topic, 0)
                consumer.assign([where])
                await consumer.seek_to_end(where)
                await consumer.position(where)
                await asyncio.to_thread(at_end)
                async with asyncio.timeout(READ_TIMEOUT_S):
                    while len(seen) < count:
                        for records in (await consumer.getmany(timeout_ms=200)).values():
                            seen += map(_from_record, records)
            return seen

        return aio.run(run())

    def bounds(self, address: str, topic: str, partition: int = 0) -> tuple[int, int]:
        async def run() -> tuple[int, int]:
            async with self._consumer(address) as consumer:
                where = aiokafka.TopicPartition(topic, partition)
                low = await consumer.beginning_offsets([where])
                high = await consumer.end_offsets([where])
                return low[where], high[where]

        return aio.run(run())

    def offset_at(self, address: str, topic: str, timestamp_ms: int) -> int | None:
        async def run() -> int | None:
            async with self._consumer(address) as consumer:
                where = aiokafka.TopicPartition(topic, 0)
                found = (await consumer.offsets_for_times({where: timestamp_ms}))[where]
                return None if found is None else found.offset

        return aio.run(run())


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
