"""The client program of the Kafka benchmarks: the same librdkafka calls for every server."""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.workload import VALUE_BYTES, run_threads, values

_CHUNK_RECORDS = 500
_CONSUME_RECORDS = 5_000
_TIMEOUT_S = 60.0
_STAMP_BYTES = 8
_WARMUP_S = 0.5
_WATERMARKS_S = 10.0
_TAG_COUNT = 10

_QUIET = {"log_level": 0}
"""A server that stops between rounds is no news."""
_LARGE_QUEUE = {
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 2_000_000,
}
_THROUGHPUT = {"linger.ms": 5, **_LARGE_QUEUE}
_ONE_BY_ONE = {**_THROUGHPUT, "linger.ms": 0, "batch.num.messages": 1}
"""Every record is a batch and a request of its own; many are in flight."""

_names = itertools.count()


class Client:
    """Loads one server. Topics are new for every round, so that rounds do not pile up."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._admin = AdminClient({"bootstrap.servers": address, **_QUIET})
        plain = values(_CHUNK_RECORDS)
        self._chunk = [{"value": value} for value in plain]
        self._values = plain
        self._headers: list[dict[str, str | bytes | None]] = [
            {"tag": b"tag-%d" % number} for number in range(_TAG_COUNT)
        ]

    # Topics -----------------------------------------------------------------------------------

    def create(self, partitions: int, options: Mapping[str, str], replicas: int = 1) -> str:
        name = f"bench-{next(_names)}"
        topic = NewTopic(name, partitions, replicas, config=dict(options))
        self._admin.create_topics([topic])[name].result(_TIMEOUT_S)
        return name

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(_TIMEOUT_S)

    # Producing ----------------------------------------------------------------------------------

    def produce(self, topic: str, partitions: int, count: int) -> float:
        """Seconds until `count` records, in turn to each partition, are acknowledged."""
        return self._produce_chunks(topic, partitions, count, _THROUGHPUT)

    def produce_one_by_one(self, topic: str, count: int) -> float:
        """The same with one record per request, to one partition."""
        return self._produce_chunks(topic, 1, count, _ONE_BY_ONE)

    def _produce_chunks(
        self, topic: str, partitions: int, count: int, options: Mapping[str, int]
    ) -> float:
        producer = self._producer(topic, partitions, options)
        seconds = self._queue_chunks(producer, topic, partitions, count)
        # Without delivery callbacks, which cost as much as the rest, the ends say what arrived.
        self._require_stored(topic, partitions, count - count % _CHUNK_RECORDS + partitions)
        return seconds

    def _queue_chunks(self, producer: Producer, topic: str, partitions: int, count: int) -> float:
        turns = itertools.cycle(range(partitions))
        started = time.perf_counter()
        for _ in range(count // _CHUNK_RECORDS):
            queued = producer.produce_batch(topic, self._chunk, partition=next(turns))
            if queued != _CHUNK_RECORDS:
                raise RuntimeError("the client's queue is full; make it larger")
        return _flushed(producer, started)

    def produce_with(
        self,
        options: Mapping[str, str | int],
        topic: str,
        partitions: int,
        values: Sequence[bytes],
        counts: Sequence[int],
    ) -> float:
        """Seconds until several producers at once, each with its count, have all acknowledged."""
        chunk = [{"value": value} for value in values]
        producers = [
            Producer({"bootstrap.servers": self._address, **_QUIET, **_LARGE_QUEUE, **options})
            for _ in counts
        ]
        for producer in producers:  # Connects, and learns where the partitions are.
            producer.list_topics(topic, timeout=_TIMEOUT_S)

        def produce(number: int) -> None:
            left, partition = counts[number], number
            while left > 0:
                queued = producers[number].produce_batch(
                    topic, chunk[:left], partition=partition % partitions
                )
                if queued != min(left, len(chunk)):
                    raise RuntimeError("the client's queue is full; make it larger")
                left -= queued
                partition += 1
            _flushed(producers[number], 0.0)

        seconds = run_threads(produce, len(counts))
        self._require_stored(topic, partitions, sum(counts))
        return seconds

    def produce_nowhere(self, count: int) -> float:
        """The same to librdkafka's mock broker, which is part of the client and keeps nothing: what
        this client can do at best."""
        producer = self._producer("mock", 1, {**_THROUGHPUT, "test.mock.num.brokers": 1})
        return self._queue_chunks(producer, "mock", 1, count)

    def produce_tagged(self, topic: str, count: int) -> float:
        """The same with a unique key and one of a few tags, to one partition."""
        producer = self._producer(topic, 1, _THROUGHPUT)
        headers, plain = self._headers, self._values
        started = time.perf_counter()
        for number in range(count):
            producer.produce(
                topic,
                plain[number % _CHUNK_RECORDS],
                b"key-%012d" % number,
                0,
                headers=headers[number % _TAG_COUNT],
            )
        seconds = _flushed(producer, started)
        self._require_stored(topic, 1, count + 1)
        return seconds

    def _producer(self, topic: str, partitions: int, options: Mapping[str, int]) -> Producer:
        """One that is connected and knows the topic: a record has gone to each partition."""
        producer = Producer({"bootstrap.servers": self._address, **_QUIET, **options})
        for partition in range(partitions):
            producer.produce(topic, b"first", partition=partition)
        _flushed(producer, 0.0)
        return producer

    def _require_stored(self, topic: str, partitions: int, count: int) -> None:
        """The peer's watermarks may follow its acknowledgements a moment later."""
        consumer = self._consumer()
        deadline = time.monotonic() + _WATERMARKS_S
        try:
            while (stored := _stored_count(consumer, topic, partitions)) != count:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{stored} of {count} records were stored")
        finally:
            consumer.close()

    def first_produce(self, topic: str) -> None:
        """Returns when one record is acknowledged by a server that may just be starting."""
        eager = {
            "linger.ms": 0,
            "reconnect.backoff.ms": 1,
            "reconnect.backoff.max.ms": 10,
            "retry.backoff.ms": 5,
            "topic.metadata.refresh.fast.interval.ms": 5,
        }
        producer = Producer({"bootstrap.servers": self._address, **_QUIET, **eager})
        failures: list[KafkaError] = []
        producer.produce(
            topic,
            b"v" * VALUE_BYTES,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        _flushed(producer, 0.0)
        if failures:
            raise KafkaException(failures[0])

    # Consuming ----------------------------------------------------------------------------------

    def consume(self, topic: str, partitions: int, count: int) -> float:
        """Records/s from the first record on, reading all partitions from their start."""
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
            left = count - len(_consumed(consumer, 1))
            measured = left
            started = time.perf_counter()
            while left > 0:
                left -= len(_consumed(consumer, min(left, _CONSUME_RECORDS)))
            return measured / (time.perf_counter() - started)
        finally:
            consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "bench",
                "enable.auto.commit": False,
                "socket.nagle.disable": True,
            }
        )

    # Latency ------------------------------------------------------------------------------------

    def latencies(
        self, topic: str, rate: int, seconds: float, options: Mapping[str, str | int]
    ) -> "Latencies":
        """Single records at an even rate, each sent at once, read by a waiting consumer."""
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "linger.ms": 0,
                "socket.nagle.disable": True,
                **options,
            }
        )
        return _LatencyRound(producer, self._consumer(), topic, rate, seconds).run()


def _stored_count(consumer: Consumer, topic: str, partitions: int) -> int:
    stored = 0
    for partition in range(partitions):
        wanted = TopicPartition(topic, partition)
        start, end = consumer.get_watermark_offsets(wanted, timeout=_TIMEOUT_S)
        stored += end - start
    return stored


def _flushed(producer: Producer, started: float) -> float:
    left = producer.flush(_TIMEOUT_S)
    seconds = time.perf_counter() - started
    if left:
        raise RuntimeError(f"{left} records were not acknowledged in {_TIMEOUT_S:g} s")
    return seconds


def _consumed(consumer: Consumer, count: int) -> Sequence[object]:
    messages = consumer.consume(count, timeout=_TIMEOUT_S)
    if not messages:
        raise RuntimeError(f"nothing came in {_TIMEOUT_S:g} s")
    error = messages[-1].error()
    if error is not None:
        raise KafkaException(error)
    return messages


@dataclass(slots=True)
class Latencies:
    """Milliseconds from the call of produce to each event."""

    acknowledged_ms: list[float] = field(default_factory=list)
    consumed_ms: list[float] = field(default_factory=list)


class _LatencyRound:
    """One thread sends, one takes acknowledgements, one consumes: neither delays the others.

    librdkafka's waits are whole milliseconds, so the sender does not wait in them.
    """

    def __init__(
        self, producer: Producer, consumer: Consumer, topic: str, rate: int, seconds: float
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topic = topic
        self._interval_s = 1 / rate
        self._warmup_count = int(rate * _WARMUP_S)
        self._count = self._warmup_count + int(rate * seconds)
        self._ended = threading.Event()
        self._latencies = Latencies()
        self._received = 0

    def run(self) -> Latencies:
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        threads = [threading.Thread(target=run) for run in (self._take_answers, self._consume)]
        for thread in threads:
            thread.start()
        try:
            self._send()
            _flushed(self._producer, 0.0)
            deadline = time.monotonic() + _TIMEOUT_S
            while self._received < self._count and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            self._consumer.close()
        if self._received != self._count:
            raise RuntimeError(f"{self._received} of {self._count} records were consumed")
        taken = self._latencies
        # The first records pay for connecting and for the consumer's start.
        return Latencies(
            taken.acknowledged_ms[self._warmup_count :], taken.consumed_ms[self._warmup_count :]
        )

    def _send(self) -> None:
        rest = b"v" * (VALUE_BYTES - _STAMP_BYTES)
        due = time.perf_counter()
        for _ in range(self._count):
            stamp = time.perf_counter_ns()
            self._producer.produce(
                self._topic,
                stamp.to_bytes(_STAMP_BYTES, "big") + rest,
                partition=0,
                on_delivery=self._acknowledged,
            )
            due += self._interval_s
            pause = due - time.perf_counter()
            if pause > 0:
                time.sleep(pause)

    def _acknowledged(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is not None or value is None:
            raise KafkaException(error)
        stamp = int.from_bytes(value[:_STAMP_BYTES], "big")
        self._latencies.acknowledged_ms.append((time.perf_counter_ns() - stamp) / 1e6)

    def _take_answers(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(0.1)

    def _consume(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            now = time.perf_counter_ns()
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert value is not None
            stamp = int.from_bytes(value[:_STAMP_BYTES], "big")
            self._latencies.consumed_ms.append((now - stamp) / 1e6)
            self._received += 1
