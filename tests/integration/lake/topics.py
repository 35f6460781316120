"""Topics of a running node for tests with Spark: made, filled by a Kafka client, read by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from firnmq.lake.plans.wire import LATEST, WireClient

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A record as a consumer sees it that reads only what is committed."""

    shard: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())


def make_topic(
    address: str, name: str, shards: int = 1, options: Mapping[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    wanted = NewTopic(name, shards, 1, config=dict(options or {}))
    admin.create_topics([wanted])[name].result(TIMEOUT_S)


def send(address: str, topic: str, records: Sequence[Sent], codec: str = "none") -> None:
    """Returns when all are acknowledged, in their order."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "enable.idempotence": True,
            "batch.num.messages": 500,
            "linger.ms": 5,
        }
    )
    errors: list[Any] = []
    for record in records:
        while True:
            try:
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    timestamp=record.timestamp_ms,
                    partition=record.shard,
                    on_delivery=lambda error, _: errors.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors


def has_open(address: str, topic: str) -> bool:
    """Whether records wait for the end of a transaction."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "tests",
            "isolation.level": "read_uncommitted",  # Else it asks for the end of what is decided.
        }
    )
    try:
        shards = list(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
        ends = {
            shard: consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(topic, shard), TIMEOUT_S
            )[1]
            for shard in shards
        }
    finally:
        consumer.close()
    with WireClient(address) as client:
        return client.list_offsets(topic, shards, LATEST) != ends


def committed(address: str, topic: str) -> list[Seen]:
    """Every committed record of all shards, in the order of shards and offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        shards = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, shard, 0) for shard in shards])
        ended: set[int] = set()
        seen = []
        while len(ended) < len(shards):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the consumer waits for a transaction to end"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            seen.append(
                Seen(
                    shard=message.partition(),
                    offset=message.offset(),
                    timestamp_ms=message.timestamp()[1],
                    key=message.key(),
                    value=message.value(),
                    headers=tuple(message.headers() or ()),
                )
            )
    finally:
        consumer.close()
    return sorted(seen, key=lambda each: (each.shard, each.offset))
