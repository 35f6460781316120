"""Kafka clients and commands reach every topic through any node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from firnmq.cluster.nodes.coordinators import slot_of
from firnmq.record import NewRecord, encode
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until
from tests.integration.kafka.wire import Wire

_RECORDS = 60


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path_factory.mktemp("cluster"))) as found:
        found.start()
        yield found


def _create(
    nodes: Nodes, name: str, partitions: int, *, through: int = 1, storage: str = "EngineSegment"
) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[through].address})
    topic = NewTopic(name, partitions, 1, config={"storage.type": storage})
    (made,) = admin.create_topics([topic]).values()
    made.result(WAIT_S)
    for number in nodes.processes:
        nodes.wait_leaders(number, name)


def test_every_node_names_all_nodes_and_the_leaders_are_spread(nodes: Nodes) -> None:
    _create(nodes, "spread", 6, through=2)
    told = [nodes.leaders(number, "spread") for number in nodes.processes]

    assert told[0] == told[1] == told[2]
    assert Counter(told[0].values()) == {1: 2, 2: 2, 3: 2}
    for number in nodes.processes:
        brokers = nodes.metadata(number, "spread").brokers
        assert {each.node_id: each.port for each in brokers} == {
            other: process.port for other, process in nodes.processes.items()
        }


@pytest.mark.parametrize("through", [1, 2, 3])
def test_confluent_kafka_through_any_node(nodes: Nodes, through: int) -> None:
    topic = f"confluent{through}"
    _create(nodes, topic, 4, through=through)
    address = nodes[through].address
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number in range(_RECORDS):
        producer.produce(topic, str(number).encode(), key=str(number).encode())
    assert producer.flush(WAIT_S) == 0
    group = {"group.id": f"group{through}", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": address, **group})
    consumer.subscribe([topic])
    found: set[bytes] = set()

    def all_read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.add(message.value() or b"")
        return len(found) == _RECORDS

    wait_until(all_read, "every record is read")
    consumer.commit(asynchronous=False)
    consumer.close()


def test_kafka_python_and_aiokafka(nodes: Nodes) -> None:
    _create(nodes, "python", 3)
    producer = kafka.KafkaProducer(bootstrap_servers=nodes[2].address)
    sent = [producer.send("python", str(number).encode()) for number in range(_RECORDS)]
    for each in sent:
        each.get(WAIT_S)
    producer.close()

    async def consume() -> set[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            "python",
            bootstrap_servers=nodes[3].address,
            group_id="aio",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        found: set[bytes] = set()
        try:
            async with asyncio.timeout(WAIT_S):
                while len(found) < _RECORDS:
                    found.add((await consumer.getone()).value)
        finally:
            await consumer.stop()
        return found

    assert len(asyncio.run(consume())) == _RECORDS


@pytest.mark.parametrize("storage", ["EngineSegment", "EngineRocksDB", "EngineMemory"])
def test_a_request_at_the_wrong_node_gets_the_leaders_answer(nodes: Nodes, storage: str) -> None:
    name = f"wrong{storage}"
    _create(nodes, name, 3, storage=storage)
    leaders = nodes.leaders(1, name)
    assert set(leaders.values()) == {1, 2, 3}
    with closing(Wire(nodes[1].port)) as wire:
        for partition, leader in leaders.items():
            batch = bytes(encode([NewRecord(value=b"v%d" % partition, key=b"k")], now_ms=1000))
            for offset in range(2):
                answer = wire.ask(ApiKey.PRODUCE, 7, _produce(name, partition, batch))
                (found,) = answer.responses[0].partition_responses
                assert (found.error_code, found.base_offset) == (0, offset), leader
            listed = wire.ask(ApiKey.LIST_OFFSETS, 4, _list_end(name, partition))
            assert listed.topics[0].partitions[0].offset == 2
            fetched = wire.ask(ApiKey.FETCH, 4, _fetch(name, partition))
            data = fetched.responses[0].partitions[0]
            assert (data.error_code, data.high_watermark) == (0, 2)
            assert b"v%d" % partition in bytes(data.records)


def test_a_fetch_at_the_wrong_node_waits_for_an_append(nodes: Nodes) -> None:
    _create(nodes, "waits", 3)
    partition = nodes.partition_led_by(3, "waits")
    batch = bytes(encode([NewRecord(value=b"late")], now_ms=1000))
    with closing(Wire(nodes[1].port)) as waiting, closing(Wire(nodes[2].port)) as writing:
        waiting.begin(ApiKey.FETCH, 4, _fetch("waits", partition, wait_ms=30_000))
        writing.ask(ApiKey.PRODUCE, 7, _produce("waits", partition, batch))
        data = waiting.end(ApiKey.FETCH, 4).responses[0].partitions[0]
    assert b"late" in bytes(data.records)


def test_a_group_request_at_the_wrong_node_gets_the_coordinators_answer(nodes: Nodes) -> None:
    _create(nodes, "committed", 1)
    groups = [f"g{number}" for number in range(6)]
    assert len({slot_of(group) for group in groups}) > 3
    commit = [OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
    for turn, group in enumerate(groups):
        with closing(Wire(nodes[turn % 3 + 1].port)) as wire:
            topics = [OffsetCommitRequestTopic(name="committed", partitions=commit)]
            request = OffsetCommitRequest(group_id=group, topics=topics)
            answer = wire.ask(ApiKey.OFFSET_COMMIT, 5, request)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        asked = [OffsetFetchRequestTopic(name="committed", partition_indexes=[0])]
        for process in nodes.processes.values():
            with closing(Wire(process.port)) as wire:
                request = OffsetFetchRequest(group_id=group, topics=asked)
                told = wire.ask(ApiKey.OFFSET_FETCH, 5, request)
            assert told.topics[0].partitions[0].committed_offset == 7


def test_topics_are_changed_through_any_node(nodes: Nodes) -> None:
    _create(nodes, "changed", 2, through=3)
    admin = AdminClient({"bootstrap.servers": nodes[1].address})
    (grown,) = admin.create_partitions([NewPartitions("changed", 5)]).values()
    grown.result(WAIT_S)
    for number in nodes.processes:
        wait_until(lambda n=number: len(nodes.leaders(n, "changed")) == 5, "grown everywhere")
    change = ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", "changed", incremental_configs=[change])
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(WAIT_S)

    def told(number: int) -> str:
        asked = ConfigResource("topic", "changed")
        client = AdminClient({"bootstrap.servers": nodes[number].address})
        (described,) = client.describe_configs([asked]).values()
        return str(described.result(WAIT_S)["retention.ms"].value)

    for number in nodes.processes:
        wait_until(lambda n=number: told(n) == "12345", "changed everywhere")
    (deleted,) = admin.delete_topics(["changed"]).values()
    deleted.result(WAIT_S)
    for number in nodes.processes:
        wait_until(
            lambda n=number: nodes.metadata(n, "changed").topics[0].error_code != 0,
            "deleted everywhere",
        )
        segments = nodes.directory / f"node{number}" / "segments"
        topic_ids = {each["topic_id"] for each in nodes.topics(number)}
        wait_until(
            lambda d=segments, ids=topic_ids: (
                {path.name.rpartition("_")[0] for path in d.glob("*_*")} <= ids
            ),
            "the bytes are gone",
        )


def test_commands_through_any_node(nodes: Nodes) -> None:
    _firn(nodes[1].data, "topic", "create", "commands", "--shards", "3")
    for number in nodes.processes:
        nodes.wait_leaders(number, "commands")
        _firn(nodes[number].data, "produce", "commands", f"v{number}", "--key", f"k{number}")
    for number in nodes.processes:
        read = _firn(nodes[number].data, "read", "commands")
        assert all(f"v{each}" in read for each in nodes.processes)
        assert "v2" in _firn(nodes[number].data, "read", "commands", "--key", "k2")
        described = _firn(nodes[number].data, "topic", "describe", "commands")
        assert described.count("\n    ") >= 3
    listed = _firn(nodes[2].data, "node", "list")
    assert listed.count("registered") == 2
    assert "metadata in sqlite" in _firn(nodes[3].data, "cluster", "status")


def _firn(data: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "firnmq", *arguments, "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _produce(topic: str, partition: int, batch: bytes) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=batch)]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def _list_end(topic: str, partition: int) -> ListOffsetsRequest:
    wanted = [ListOffsetsPartition(partition_index=partition, timestamp=-1)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=wanted)])


def _fetch(topic: str, partition: int, *, wait_ms: int = 1000) -> FetchRequest:
    wanted = [FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1024 * 1024)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=wanted)]
    )
