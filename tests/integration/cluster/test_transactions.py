"""Transactions whose partitions, groups and coordinators are on several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until

_PARTITIONS = 6


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path_factory.mktemp("cluster"))) as found:
        found.start()
        yield found


def _create(nodes: Nodes, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].address})
    for made in admin.create_topics([NewTopic(each, _PARTITIONS, 1) for each in names]).values():
        made.result(WAIT_S)
    for name in names:
        for number in nodes.processes:
            nodes.wait_leaders(number, name)


def _producer(nodes: Nodes, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "transactional.id": transactional_id,
            "retry.backoff.ms": 50,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def _consumer(nodes: Nodes, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def _committed(nodes: Nodes, topic: str) -> list[bytes]:
    """What a consumer of committed records finds in all partitions, up to their ends."""
    consumer = _consumer(nodes, "reader")
    places = [TopicPartition(topic, index, 0) for index in range(_PARTITIONS)]
    ends = {
        each.partition: consumer.get_watermark_offsets(each, timeout=WAIT_S)[1] for each in places
    }
    consumer.assign(places)
    found: list[bytes] = []

    def is_read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append(message.value() or b"")
        at = {each.partition: each.offset for each in consumer.position(places)}
        return all(at[index] >= end for index, end in ends.items() if end)

    wait_until(is_read, f"all of {topic} is read")
    consumer.close()
    return sorted(found)


def test_a_transaction_over_all_nodes_is_shown_as_a_whole_or_not_at_all(nodes: Nodes) -> None:
    _create(nodes, "whole")
    expected = []
    for number in range(4):  # Ids of several coordinators.
        producer = _producer(nodes, f"id{number}")
        for turn in range(2):
            for is_commit in (True, False):
                producer.begin_transaction()
                for partition in range(_PARTITIONS):
                    value = f"{number}-{turn}-{partition}-{is_commit}".encode()
                    producer.produce("whole", value, partition=partition)
                    if is_commit:
                        expected.append(value)
                if is_commit:
                    producer.commit_transaction(WAIT_S)
                else:
                    producer.flush(WAIT_S)
                    producer.abort_transaction(WAIT_S)
    assert _committed(nodes, "whole") == sorted(expected)


def test_offsets_of_a_group_are_part_of_the_transaction(nodes: Nodes) -> None:
    _create(nodes, "input", "output")
    filling = Producer({"bootstrap.servers": nodes.bootstrap})
    for partition in range(_PARTITIONS):
        for turn in range(3):
            filling.produce("input", f"{partition}-{turn}".encode(), partition=partition)
    assert filling.flush(WAIT_S) == 0
    for number in range(4):  # Groups and ids of several coordinators.
        consumer = _consumer(nodes, f"copiers{number}")
        consumer.subscribe(["input"])
        producer = _producer(nodes, f"copier{number}")
        seen: list[bytes] = []
        while len(seen) < 3 * _PARTITIONS:
            messages = consumer.consume(7, 0.5)
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                assert not message.error()
                seen.append(message.value() or b"")
                producer.produce("output", b"%d:" % number + seen[-1], partition=0)
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                WAIT_S,
            )
            producer.commit_transaction(WAIT_S)
        places = [TopicPartition("input", index) for index in range(_PARTITIONS)]
        told = consumer.committed(places, timeout=WAIT_S)
        assert [each.offset for each in told] == [3] * _PARTITIONS

        # An aborted transaction leaves the group where it was.
        producer.begin_transaction()
        producer.produce("output", b"never", partition=1)
        back = [TopicPartition("input", 0, 1)]
        producer.send_offsets_to_transaction(back, consumer.consumer_group_metadata(), WAIT_S)
        producer.abort_transaction(WAIT_S)
        assert [each.offset for each in consumer.committed(places, timeout=WAIT_S)] == [3] * 6
        consumer.close()
    copied = _committed(nodes, "output")
    values = sorted(f"{partition}-{turn}" for partition in range(_PARTITIONS) for turn in range(3))
    assert copied == sorted(f"{n}:{value}".encode() for n in range(4) for value in values)


def test_a_decided_transaction_is_carried_out_after_nodes_were_killed(nodes: Nodes) -> None:
    _create(nodes, "killed")
    producer = _producer(nodes, "survivor")
    expected = []
    for turn, victim in enumerate((1, 2, 3)):
        producer.begin_transaction()
        for partition in range(_PARTITIONS):
            expected.append(f"{turn}-{partition}".encode())
            producer.produce("killed", expected[-1], partition=partition)
        assert producer.flush(WAIT_S) == 0
        nodes[victim].kill()
        nodes[victim].start()
        producer.commit_transaction(WAIT_S)
    nodes.wait_registered()
    assert _committed(nodes, "killed") == sorted(expected)
