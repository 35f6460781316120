"""Transactions of real clients against a real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiokafka
import pytest
from aiokafka.errors import ProducerFenced as AioFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata

from tests.integration.kafka import aio
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka_transactions.conftest import MakeTopic
from tests.integration.kafka_transactions.reading import committed_offset, consumer, read_all

NewName = Callable[[str], str]

FETCH_WAIT_S = 40
"""Long enough to tell an answer that was woken from one whose time was up."""


def producer(node: NodeProcess, name: str, **options: object) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": node.address,
            "transactional.id": name,
            "linger.ms": 0,
            **options,
        }
    )
    made.init_transactions(60)
    return made


def write(sender: Producer, topic: str, *values: str, partitions: int = 1) -> None:
    for number, value in enumerate(values):
        sender.produce(topic, value.encode(), partition=number % partitions)
    assert sender.flush(60) == 0


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_commit_and_abort_over_several_partitions(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName, codec: str
) -> None:
    topic = make_topic(node, 3)
    sender = producer(node, new_name("txn"), **{"compression.type": codec})
    sender.begin_transaction()
    write(sender, topic, *(f"c{number}" for number in range(30)), partitions=3)
    sender.commit_transaction(60)
    sender.begin_transaction()
    write(sender, topic, *(f"a{number}" for number in range(30)), partitions=3)
    sender.abort_transaction(60)
    sender.begin_transaction()
    write(sender, topic, *(f"d{number}" for number in range(30)), partitions=3)
    sender.commit_transaction(60)
    expected = {f"{kind}{number}" for kind in "cd" for number in range(30)}
    found = read_all(node.address, topic, 3)
    assert len(found) == 60
    assert set(found) == expected
    assert len(read_all(node.address, topic, 3, committed=False)) == 90


def test_an_open_transaction_holds_back_what_comes_after(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(node)
    plain = Producer({"bootstrap.servers": node.address})
    sender = producer(node, new_name("txn"))
    write(plain, topic, "before")
    sender.begin_transaction()
    write(sender, topic, "inside")
    write(plain, topic, "after")
    assert read_all(node.address, topic) == ["before"]
    assert read_all(node.address, topic, committed=False) == ["before", "inside", "after"]
    partition = TopicPartition(topic, 0)
    for isolation, end in (("read_committed", 1), ("read_uncommitted", 3)):
        reader = consumer(node.address, isolation)
        assert reader.get_watermark_offsets(partition, timeout=60) == (0, end)
        reader.close()
    sender.commit_transaction(60)
    assert read_all(node.address, topic) == ["before", "inside", "after"]


def test_a_waiting_reader_gets_a_commit_at_once(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(node)
    sender = producer(node, new_name("txn"))
    write(Producer({"bootstrap.servers": node.address}), topic, "first")
    reader = consumer(node.address, "read_committed", **{"fetch.wait.max.ms": FETCH_WAIT_S * 1000})
    reader.assign([TopicPartition(topic, 0, 0)])
    while (message := reader.poll(1)) is None or message.error() is not None:
        pass
    sender.begin_transaction()
    write(sender, topic, "value")
    sender.commit_transaction(60)
    committed_s = time.monotonic()
    while (message := reader.poll(10)) is None or message.error() is not None:
        pass
    assert message.value() == b"value"
    assert time.monotonic() - committed_s < FETCH_WAIT_S / 2
    reader.close()


def test_offsets_are_committed_with_the_transaction(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    source, target, group = make_topic(node), make_topic(node), new_name("group")
    plain = Producer({"bootstrap.servers": node.address})
    write(plain, source, *map(str, range(10)))
    reader = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    reader.subscribe([source])
    while (message := reader.poll(1)) is None or message.error() is not None:
        pass
    sender = producer(node, new_name("txn"))
    for offset, commits in ((3, False), (7, True), (9, False)):
        sender.begin_transaction()
        write(sender, target, f"up to {offset}")
        offsets = [TopicPartition(source, 0, offset)]
        sender.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 60)
        if commits:
            sender.commit_transaction(60)
        else:
            sender.abort_transaction(60)
    assert committed_offset(node.address, group, source) == 7
    assert read_all(node.address, target) == ["up to 7"]
    stale = reader.consumer_group_metadata()
    reader.close()
    sender.begin_transaction()
    with pytest.raises(KafkaException):
        sender.send_offsets_to_transaction([TopicPartition(source, 0, 10)], stale, 60)
    sender.abort_transaction(60)
    assert committed_offset(node.address, group, source) == 7


def test_a_newer_instance_fences_the_older(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic, name = make_topic(node), new_name("txn")
    zombie = producer(node, name)
    zombie.begin_transaction()
    write(zombie, topic, "zombie")
    newer = producer(node, name)
    newer.begin_transaction()
    write(newer, topic, "newer")
    with pytest.raises(KafkaException) as failure:
        zombie.commit_transaction(60)
    assert failure.value.args[0].fatal()
    newer.commit_transaction(60)
    assert read_all(node.address, topic) == ["newer"]


def test_a_transaction_that_takes_too_long_is_aborted(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(node)
    slow = producer(node, new_name("txn"), **{"transaction.timeout.ms": 3_000})
    slow.begin_transaction()
    write(slow, topic, "too slow")
    plain = Producer({"bootstrap.servers": node.address})
    write(plain, topic, "after")
    give_up_s = time.monotonic() + 60
    while read_all(node.address, topic) != ["after"]:
        assert time.monotonic() < give_up_s
    with pytest.raises(KafkaException):
        slow.commit_transaction(60)


def test_too_long_a_time_out_is_refused(node: NodeProcess, new_name: NewName) -> None:
    with pytest.raises(KafkaException) as failure:
        producer(node, new_name("txn"), **{"transaction.timeout.ms": 900_001})
    assert failure.value.args[0].name() == "INVALID_TRANSACTION_TIMEOUT"


@pytest.mark.parametrize("storage", ["EngineMemory", "EngineRocksDB", "EngineSegment"])
def test_every_engine_has_transactions(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName, storage: str
) -> None:
    topic = make_topic(node, 2, storage_type=storage, durability="os", segment_bytes=4096)
    sender = producer(node, new_name("txn"))
    for number in range(40):
        sender.begin_transaction()
        kind = "c" if number % 3 else "a"
        write(sender, topic, f"{kind}{number}-0", f"{kind}{number}-1" + "x" * 300, partitions=2)
        if number % 3:
            sender.commit_transaction(60)
        else:
            sender.abort_transaction(60)
    found = read_all(node.address, topic, 2)
    assert len(found) == 52
    assert all(value.startswith("c") for value in found)


def test_aiokafka(node: NodeProcess, make_topic: MakeTopic, new_name: NewName) -> None:
    aio.run(use_aiokafka(node, make_topic(node, 2), new_name))


async def use_aiokafka(node: NodeProcess, topic: str, new_name: NewName) -> None:
    group, name = new_name("group"), new_name("txn")
    sender = aiokafka.AIOKafkaProducer(bootstrap_servers=node.address, transactional_id=name)
    await sender.start()
    async with sender.transaction():
        for number in range(10):
            await sender.send(topic, b"c%d" % number, partition=number % 2)
        offsets = {aiokafka.TopicPartition(topic, 0): 4}
        await sender.send_offsets_to_transaction(offsets, group)
    await sender.begin_transaction()
    await sender.send_and_wait(topic, b"aborted", partition=0)
    await sender.abort_transaction()
    newer = aiokafka.AIOKafkaProducer(bootstrap_servers=node.address, transactional_id=name)
    await newer.start()
    await sender.begin_transaction()
    with pytest.raises(AioFenced):
        await sender.send_and_wait(topic, b"zombie", partition=0)
    await sender.stop()
    await newer.stop()
    reader = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=node.address,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await reader.start()
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while len(found) < 10:
            batches = await reader.getmany(timeout_ms=500)
            found += [record.value for batch in batches.values() for record in batch]
    await reader.stop()
    assert sorted(found) == sorted(b"c%d" % number for number in range(10))
    assert sorted(read_all(node.address, topic, 2)) == sorted(map(bytes.decode, found))
    assert committed_offset(node.address, group, topic) == 4


def test_kafka_python(node: NodeProcess, make_topic: MakeTopic, new_name: NewName) -> None:
    topic, group = make_topic(node, 2), new_name("group")
    sender = KafkaProducer(bootstrap_servers=node.address, transactional_id=new_name("txn"))
    sender.init_transactions()
    for kind in ("c", "a", "d"):
        sender.begin_transaction()
        for number in range(10):
            sender.send(topic, f"{kind}{number}".encode(), partition=number % 2)
        if kind == "a":
            sender.flush()
            sender.abort_transaction()
        else:
            offsets = {PythonPartition(topic, 0): OffsetAndMetadata(3, "note", -1)}
            sender.send_offsets_to_transaction(offsets, group)
            sender.commit_transaction()
    sender.close()
    found = _read_with_kafka_python(node, topic)
    assert sorted(read_all(node.address, topic, 2)) == sorted(found)
    assert sorted(found) == sorted(f"{kind}{number}" for kind in "cd" for number in range(10))
    assert committed_offset(node.address, group, topic) == 3


def _read_with_kafka_python(node: NodeProcess, topic: str) -> list[str]:
    """Values of what is committed, up to the end of both partitions, beyond the last marker."""
    reader = KafkaConsumer(
        bootstrap_servers=node.address,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    partitions = [PythonPartition(topic, number) for number in range(2)]
    reader.assign(partitions)
    ends = reader.end_offsets(partitions)
    found: list[str] = []
    give_up_s = time.monotonic() + 60
    while any(reader.position(each) < ends[each] for each in partitions):
        assert time.monotonic() < give_up_s, found
        for records in reader.poll(timeout_ms=1_000).values():
            found += [record.value.decode() for record in records]
    reader.close()
    return found
