"""A group's offsets while a node is away whose transactions may be about to change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages.metadata import FindCoordinatorRequest
from firnmq.brokers.kafka.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until
from tests.integration.kafka.wire import Wire

_GROUP, _TRANSACTION = 0, 1


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path)) as found:
        found.start()
        yield found


def _id_at(nodes: Nodes, node: int, kind: int) -> str:
    """A name that a node coordinates."""
    with closing(Wire(nodes[1].port)) as wire:
        for number in range(1000):
            request = FindCoordinatorRequest(key=f"name{number}", key_type=kind)
            if wire.ask(ApiKey.FIND_COORDINATOR, 2, request).node_id == node:
                return f"name{number}"
    raise AssertionError(f"node {node} coordinates nothing")


def test_a_consumer_goes_on_after_a_node_with_its_transactions_was_away(nodes: Nodes) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].address})
    (made,) = admin.create_topics([NewTopic("input", 3, 1)]).values()
    made.result(WAIT_S)
    nodes.wait_leaders(1, "input")
    group = _id_at(nodes, 1, _GROUP)
    partition = nodes.partition_led_by(1, "input")
    settings = {
        "bootstrap.servers": nodes[1].address,
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }

    # 1. A transaction of node 2 has committed an offset of node 1's group.
    producer = Producer(
        {"bootstrap.servers": nodes.bootstrap, "transactional.id": _id_at(nodes, 2, _TRANSACTION)}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value in (b"0", b"1"):
        producer.produce("input", value, partition=partition)
    with closing(Consumer(settings)) as reader:
        offsets = [TopicPartition("input", partition, 1)]
        producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), WAIT_S)
    producer.commit_transaction(WAIT_S)

    # 2. While node 2 is away nothing is known about its transactions.
    nodes[2].kill()
    asked = [OffsetFetchRequestTopic(name="input", partition_indexes=[partition])]
    with closing(Wire(nodes[1].port)) as wire:
        request = OffsetFetchRequest(group_id=group, topics=asked, require_stable=True)
        told = wire.ask(ApiKey.OFFSET_FETCH, 7, request)
    assert told.error_code == ErrorCode.NONE
    (found,) = told.topics[0].partitions
    assert found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT

    # 3. A consumer that begins then reads as soon as the node is back. No rebalance helps it.
    errors: list[object] = []
    read: list[bytes] = []
    with closing(Consumer({**settings, "error_cb": errors.append})) as reader:
        reader.assign([TopicPartition("input", partition)])

        def poll() -> bool:
            message = reader.poll(0.2)
            if message is not None:
                assert not message.error(), message.error()
                read.append(message.value() or b"")
            return read == [b"1"]

        for _ in range(10):
            assert not poll()
        nodes[2].start()
        wait_until(poll, "the record after the committed offset is read")
