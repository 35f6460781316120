"""Killed nodes and killed workers: nothing is half done, nothing is done twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from firnmq.adapter import OffsetRows
from firnmq.brokers.kafka.transactions import KvTransactionStore, TransactionState
from firnmq.disk import KeyValueStore
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka_transactions.conftest import MakeTopic
from tests.integration.kafka_transactions.reading import committed_offset, read_all
from tests.integration.kafka_transactions.test_clients import producer, write

NewName = Callable[[str], str]
WORKER = Path(__file__).with_name("worker.py")


def test_a_transaction_goes_on_after_the_node_was_killed(
    own_node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(own_node, 2)
    sender = producer(own_node, "txn")
    sender.begin_transaction()
    write(sender, topic, "before-0", "before-1", partitions=2)
    own_node.kill()
    own_node.start()
    assert read_all(own_node.address, topic, 2) == []
    write(sender, topic, "after-0", "after-1", partitions=2)
    sender.commit_transaction(60)
    assert read_all(own_node.address, topic, 2) == ["before-0", "after-0", "before-1", "after-1"]


def test_a_transaction_whose_producer_is_gone_is_aborted_after_a_restart(
    own_node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(own_node, 2)
    lost = producer(own_node, "txn", **{"transaction.timeout.ms": 5_000})
    lost.begin_transaction()
    write(lost, topic, "lost-0", "lost-1", partitions=2)
    plain = Producer({"bootstrap.servers": own_node.address})
    write(plain, topic, "plain-0", "plain-1", partitions=2)
    own_node.kill()
    own_node.start()
    give_up_s = time.monotonic() + 60
    while read_all(own_node.address, topic, 2) != ["plain-0", "plain-1"]:
        assert time.monotonic() < give_up_s


@pytest.mark.parametrize("decision", [True, False])
def test_what_was_decided_before_the_crash_is_carried_out(
    own_node: NodeProcess, make_topic: MakeTopic, decision: bool
) -> None:
    """1. A transaction is open in two partitions, 2. the node dies right after it has saved the
    decision, 3. the next process writes the markers."""
    source, topic = make_topic(own_node), make_topic(own_node, 2)
    sender = producer(own_node, "txn")
    sender.begin_transaction()
    write(sender, topic, "0", "1", partitions=2)
    reader = Consumer({"bootstrap.servers": own_node.address, "group.id": "group"})
    offsets = [TopicPartition(source, 0, 5)]
    sender.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 60)
    reader.close()
    own_node.kill()
    asyncio.run(_decide(own_node.data / "db", "txn", is_commit=decision))
    own_node.start()
    give_up_s = time.monotonic() + 60
    expected = ["0", "1"] if decision else []
    write(Producer({"bootstrap.servers": own_node.address}), topic, "2", "3", partitions=2)
    while sorted(read_all(own_node.address, topic, 2)) != [*expected, "2", "3"]:
        assert time.monotonic() < give_up_s
    found = committed_offset(own_node.address, "group", source)
    assert found == (5 if decision else -1001)
    if decision:
        sender.commit_transaction(60)  # The client never heard, and asks again.
    else:
        sender.abort_transaction(60)
    sender.begin_transaction()
    write(sender, topic, "4", "5", partitions=2)
    sender.commit_transaction(60)
    assert sorted(read_all(own_node.address, topic, 2)) == [*expected, "2", "3", "4", "5"]


async def _decide(path: Path, name: str, *, is_commit: bool) -> None:
    """Leaves the store as a node does that dies between the decision and the markers."""
    kv = KeyValueStore(path)
    store = KvTransactionStore(OffsetRows(kv))
    snapshot = (await store.load_all())[name]
    assert snapshot.state is TransactionState.ONGOING
    state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
    decided = replace(snapshot, state=state, offsets={})
    await store.save(name, decided, snapshot.offsets if is_commit else {})
    kv.close()


def test_acknowledged_ends_hold_whenever_the_node_is_killed(
    own_node: NodeProcess, make_topic: MakeTopic
) -> None:
    """Transactions over two partitions, the node killed at random moments: a commit that was
    acknowledged is there, an abort is not, and none is there in part."""
    random = Random(7)
    topic = make_topic(own_node, 2)
    kept: set[int] = set()
    dropped: set[int] = set()
    number = 0
    for _ in range(6):
        give_up_s = time.monotonic() + random.uniform(0.1, 0.8)
        sender = producer(own_node, "txn")
        while time.monotonic() < give_up_s:
            is_commit = random.random() < 0.7
            sender.begin_transaction()
            write(sender, topic, str(number), str(number), partitions=2)
            sender.commit_transaction(60) if is_commit else sender.abort_transaction(60)
            (kept if is_commit else dropped).add(number)
            number += 1
        sender.begin_transaction()
        sender.produce(topic, str(number).encode(), partition=0)
        sender.produce(topic, str(number).encode(), partition=1)
        killer = subprocess.Popen(
            [
                *(sys.executable, "-c"),
                "import os, sys, time; time.sleep(float(sys.argv[2]));os.kill(int(sys.argv[1]), 9)",
                *(str(own_node.pid), str(random.uniform(0, 0.03))),
            ]
        )
        try:
            sender.commit_transaction(1)
            kept.add(number)
        except KafkaException:
            pass  # Unknown: it may be there or not, but not in part.
        killer.wait(60)
        own_node.kill()
        own_node.start()
        number += 1
    producer(own_node, "txn")  # Ends whatever is still open.
    found = [read_partition(own_node, topic, index) for index in range(2)]
    assert sorted(found[0]) == sorted(found[1])
    assert len(found[0]) == len(set(found[0]))
    assert kept <= set(found[0])
    assert not dropped & set(found[0])
    # What is kept of producers and transactions agrees with the log, as a crash leaves it too.
    own_node.kill()
    verify = [sys.executable, "-m", "firnmq", "verify", "--data", str(own_node.data)]
    checked = subprocess.run(verify, capture_output=True, text=True, timeout=120)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    own_node.start()


def read_partition(node: NodeProcess, topic: str, index: int) -> list[int]:
    everything = read_all(node.address, topic, 2)
    first = read_all(node.address, topic, 1)
    return [int(value) for value in (first if index == 0 else everything[len(first) :])]


@contextmanager
def working(*args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(WORKER), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    watchdog = threading.Timer(180, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("kills_node", [False, True])
def test_a_copy_is_exact_however_often_the_worker_dies(
    own_node: NodeProcess, make_topic: MakeTopic, kills_node: bool
) -> None:
    random = Random(11)
    count = 0
    source, target = make_topic(own_node, 2), make_topic(own_node, 2)
    plain = Producer({"bootstrap.servers": own_node.address})
    args = (own_node.address, source, target, "copiers", "copier")
    for round_number in range(6):
        write(plain, source, *map(str, range(count, count + 1_000)), partitions=2)
        count += 1_000
        with working(*args) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), "it is at work"
            time.sleep(random.uniform(0.01, 0.3))
            if kills_node and round_number % 2:
                own_node.kill()
                own_node.start()
                time.sleep(random.uniform(0.1, 1.0))
    give_up_s = time.monotonic() + 120
    with working(*args):
        while len(found := read_all(own_node.address, target, 2)) < count:
            assert time.monotonic() < give_up_s, f"{len(found)} of {count}"
    found = read_all(own_node.address, target, 2)
    assert sorted(map(int, found)) == list(range(count)), "each once"
    assert [value for value in map(int, found) if value % 2 == 0] == list(range(0, count, 2))
