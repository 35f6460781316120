"""A producer that knows of every record whether it was acknowledged, refused or neither, and the
check that a topic has what it must have."""

from __future__ import annotations

import threading
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_FLUSH_S = 60.0
_READ_S = 60.0
_PAUSE_S = 0.002
_BEHIND_MAX = 500


class CheckedProducer:
    """Produces numbered records to all partitions until it is stopped. Idempotent: a record that
    was acknowledged is there once."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self.topic = topic
        self.partition_count = partition_count
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """Record → partition and offset."""
        self.failed: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": int(_FLUSH_S * 1000),
                "topic.metadata.refresh.interval.ms": 1000,
                "retry.backoff.ms": 50,
            }
        )
        self._stopping = threading.Event()
        self._sent = 0
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def acknowledged_of(self, partition: int) -> int:
        return sum(place[0] == partition for place in list(self.acknowledged.values()))

    def stop(self) -> None:
        """Returns once every record is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(_FLUSH_S) == 0

    def _produce(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            self._producer.poll(0)
            if len(self._producer) > _BEHIND_MAX:
                continue
            number, self._sent = self._sent, self._sent + 1
            self._producer.produce(
                self.topic,
                str(number).encode(),
                partition=number % self.partition_count,
                on_delivery=self._delivered,
            )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.acknowledged[int(value)] = (partition, offset)

    def check(self, bootstrap: str) -> None:
        """Everything that was acknowledged is there, once, where it was said to be, in order."""
        found = read_all(bootstrap, self.topic, self.partition_count)
        counts: Counter[int] = Counter()
        for values in found.values():
            numbers = [int(value) for value in values.values()]
            assert numbers == sorted(numbers)
            counts.update(numbers)
        lost = {
            number: place
            for number, place in self.acknowledged.items()
            if found[place[0]].get(place[1]) != str(number).encode()
        }
        assert not lost
        assert all(counts[number] == 1 for number in self.acknowledged)


def read_all(
    bootstrap: str, topic: str, partition_count: int, *, committed: bool = False
) -> dict[int, dict[int, bytes]]:
    """Every record of each partition by its offset, or every committed one."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    found: dict[int, dict[int, bytes]] = {index: {} for index in range(partition_count)}
    ends = {}
    for index in found:
        _, ends[index] = consumer.get_watermark_offsets(
            TopicPartition(topic, index), timeout=_READ_S
        )
    consumer.assign([TopicPartition(topic, index, 0) for index in found])
    left = {index for index, end in ends.items() if end}
    deadline = time.monotonic() + _READ_S
    while left:
        assert time.monotonic() < deadline, f"partitions {left} were not read to {ends}"
        message = consumer.poll(0.5)
        if committed:  # Markers come last, and are no messages.
            places = consumer.position([TopicPartition(topic, index) for index in left])
            left -= {each.partition for each in places if each.offset >= ends[each.partition]}
        if message is None or message.error():
            continue
        index, offset, value = message.partition(), message.offset(), message.value()
        assert index is not None
        assert offset is not None
        assert value is not None
        found[index][offset] = value
        if offset >= ends[index] - 1:
            left.discard(index)
    consumer.close()
    return found
