"""Real clients that know what became of every record, and of everything that was read."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.integration.cluster.checker import read_all

_DELIVERY_S = 120.0
_PAUSE_S = 0.002
_BEHIND_MAX = 300


class LoggedProducer:
    """Produces numbered records to all partitions until it is stopped."""

    def __init__(
        self, bootstrap: str, topic: str, partition_count: int, name: str, *, is_idempotent: bool
    ) -> None:
        self.name = name
        self.is_idempotent = is_idempotent
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        """Record → partition and offset."""
        self.failed: dict[bytes, KafkaError] = {}
        """Their outcome is unknown, unless the error says that nothing was stored."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": is_idempotent,
                "acks": "all",
                "linger.ms": 5,
                "delivery.timeout.ms": int(_DELIVERY_S * 1000),
                "topic.metadata.refresh.interval.ms": 1000,
                "retry.backoff.ms": 50,
                # A node that stands still keeps its connections.
                "request.timeout.ms": 5000,
                "socket.timeout.ms": 6000,
            }
        )
        self._topic = topic
        self._partition_count = partition_count
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def count_of(self, partition: int) -> int:
        return sum(place[0] == partition for place in list(self.acknowledged.values()))

    def stop(self) -> None:
        """Returns once every record is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(_DELIVERY_S) == 0

    def _produce(self) -> None:
        for number in itertools.count():
            while len(self._producer) > _BEHIND_MAX and not self._stopping.is_set():
                self._producer.poll(0.05)
            if self._stopping.wait(_PAUSE_S):
                return
            self._producer.poll(0)
            self._producer.produce(
                self._topic,
                f"{self.name} {number}".encode(),
                partition=number % self._partition_count,
                on_delivery=self._delivered,
            )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        if error is not None:
            self.failed[value] = error
            return
        assert partition is not None
        assert offset is not None
        self.acknowledged[value] = partition, offset


class LoggedReader:
    """Reads all partitions from the beginning, again and again, until it is stopped; notes every
    value that it has seen, and every offset that has shown two."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self.seen: dict[tuple[int, int], bytes] = {}
        self.changed: list[tuple[int, int, bytes, bytes]] = []
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self._partitions = [TopicPartition(topic, index, 0) for index in range(partition_count)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stopping.is_set():
            consumer = Consumer(self._settings)
            consumer.assign(self._partitions)
            until_s = time.monotonic() + 5.0
            while time.monotonic() < until_s and not self._stopping.is_set():
                for message in consumer.consume(500, 0.2):
                    if message.error() is None:
                        self._note(message)
            consumer.close()

    def _note(self, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        known = self.seen.setdefault((partition, offset), value)
        if known != value:
            self.changed.append((partition, offset, known, value))


def check(
    bootstrap: str,
    topic: str,
    partition_count: int,
    producers: list[LoggedProducer],
    reader: LoggedReader,
) -> None:
    """Nothing acknowledged is lost or doubled, nothing read has changed or vanished, and records of
    an idempotent producer are in order."""
    assert not reader.changed
    found = read_all(bootstrap, topic, partition_count)
    vanished = {
        place: value
        for place, value in reader.seen.items()
        if found[place[0]].get(place[1]) != value
    }
    assert not vanished
    for producer in producers:
        lost = {
            value: place
            for value, place in producer.acknowledged.items()
            if found[place[0]].get(place[1]) != value
        }
        assert not lost, f"{producer.name}: {len(lost)} lost"
    counts = Counter(value for values in found.values() for value in values.values())
    for producer in producers:
        if producer.is_idempotent:
            doubled = [each for each in producer.acknowledged if counts[each] != 1]
            assert not doubled, f"{producer.name}: {doubled[:5]} are there twice"
    for index, values in found.items():
        by_name: dict[bytes, list[int]] = defaultdict(list)
        for offset in sorted(values):
            name, _, number = values[offset].partition(b" ")
            by_name[name].append(int(number))
        for producer in producers:
            if producer.is_idempotent:
                numbers = by_name[producer.name.encode()]
                assert numbers == sorted(numbers), f"{producer.name} in partition {index}"
