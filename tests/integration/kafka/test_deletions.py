"""Entries of deletions, met by clients that know nothing of FirnMQ: they pass over them."""

from __future__ import annotations

import json
import urllib.request
import uuid

import confluent_kafka
import kafka
import pytest

from tests.integration.kafka.clients import Client
from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import Row

ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")
TIMEOUT_S = 60
LIVE = [1, 7, 9]
"""Offsets of records: 4 and 10 have markers; 5, 6 and 11 have entries."""


def delete(node: NodeProcess, topic: str, **wanted: object) -> None:
    request = urllib.request.Request(
        f"{node.admin_url}/v1/topics/{topic}/deletions",
        method="POST",
        data=json.dumps(wanted).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        assert json.load(answer)[0]["deleted"]


@pytest.fixture(params=ENGINES)
def topic(request: pytest.FixtureRequest, node: NodeProcess, make_topic: MakeTopic) -> str:
    """Records, with entries of deletions between them and at the end, some of a transaction."""
    name = make_topic(node, storage_type=request.param, segment_bytes=1024)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.address, "transactional.id": f"of-{name}"}
    )
    producer.init_transactions(TIMEOUT_S)

    def write(first: int, count: int) -> None:
        producer.begin_transaction()
        for number in range(first, first + count):
            producer.produce(name, key=b"key-%d" % (number % 5), value=b"%d" % number, partition=0)
        producer.flush(TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)

    write(0, 4)
    delete(node, name, shard=0, offsets=[0, 2])
    delete(node, name, shard=0, key="key-3")
    write(7, 3)
    delete(node, name, shard=0, offsets=[8])
    return name


def test_every_client_reads_on_behind_them(client: Client, node: NodeProcess, topic: str) -> None:
    """1. Deleted records are not there, others are. 2. The end is behind the last entry, and a
    reader comes to it from any offset. 3. It goes on with what is written then."""
    assert client.bounds(node.address, topic) == (0, 12)
    for start in (0, 4, 5, 6, 8, 11, 12):
        found = client.read_to_end(node.address, topic, start=start)
        assert [each.offset for each in found] == [at for at in LIVE if at >= start]
    with client.writer(node.address) as writer:
        assert writer.write(topic, [Row(key=b"key-3", value=b"new")]) == [12]
    assert [each.offset for each in client.read_to_end(node.address, topic)] == [*LIVE, 12]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_whatever_is_asked_of_transactions(node: NodeProcess, topic: str, level: str) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=node.address, enable_auto_commit=False, isolation_level=level
    )
    where = kafka.TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek(where, 0)
    offsets: list[int] = []
    while consumer.position(where) < 12:
        for records in consumer.poll(timeout_ms=200).values():
            offsets += [each.offset for each in records]
    consumer.close()
    assert offsets == LIVE

    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": f"reader-{uuid.uuid4()}",
            "enable.partition.eof": True,
            "isolation.level": level,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[int] = []
    while (message := reader.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append(message.offset())
    reader.close()
    assert message is not None
    assert found == LIVE
