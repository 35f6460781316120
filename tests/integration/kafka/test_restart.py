"""A node that is killed or stopped under its clients: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.kafka import aio
from tests.integration.kafka.clients import Client, Confluent
from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.members import WAIT_TIMEOUT_S, Crew
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.kafka.rows import Row, numbered

# kafka-python leaves the sockets of failed connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PARTITIONS = 3
KILLS = 20 if os.environ.get("FIRN_SOAK") == "1" else 4
PROGRESS = 150
"""Records each producer must have acknowledged between two kills."""


@pytest.fixture(autouse=True)
def _tidy_away() -> Iterator[None]:
    """What a client has left behind must not be found during another test.

    Log records are kept until the end of the session, and those of the clients hold sockets.
    """
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for _ in range(5):  # Each round frees what the one before had kept alive.
        gc.collect()


class Stream:
    """An idempotent producer in a thread that sends numbers until told to stop."""

    def __init__(self, address: str, topics: list[str]) -> None:
        self.address = address
        self.topics = topics
        self.sent = 0
        self.acknowledged = 0
        self.failures: list[str] = []
        self._moved = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_TIMEOUT_S)
        assert not self._thread.is_alive(), "the producer does not come to an end"

    def wait_acknowledged(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        with self._moved:
            while self.acknowledged < count:
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"stuck at {self.acknowledged}: {self.failures[:3]}"
                self._moved.wait(left_s)

    def next_rows(self) -> list[tuple[str, Row]]:
        """One row for each topic; the number says its place in its partition."""
        number = self.sent
        self.sent += 1
        row = Row(
            value=str(number // PARTITIONS).encode(),
            partition=number % PARTITIONS,
        )
        return [(topic, row) for topic in self.topics]

    def acknowledge(self, error: object = None) -> None:
        with self._moved:
            if error is not None:
                self.failures.append(repr(error))
            self.acknowledged += 1
            self._moved.notify_all()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def pause(self) -> None:
        self._stop.wait(0.002)

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failures.append(repr(error))
            raise

    def run(self) -> None:
        raise NotImplementedError


class ConfluentStream(Stream):
    def run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
            }
        )
        while not self.is_stopping:
            for topic, row in self.next_rows():
                producer.produce(
                    topic,
                    row.value,
                    partition=row.partition,
                    on_delivery=lambda error, _: self.acknowledge(error),
                )
            producer.poll(0)
            self.pause()
        assert producer.flush(WAIT_TIMEOUT_S) == 0


class KafkaPythonStream(Stream):
    def run(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address, linger_ms=2, reconnect_backoff_max_ms=200
        )
        while not self.is_stopping:
            for topic, row in self.next_rows():
                sent = producer.send(topic, row.value, partition=row.partition)
                sent.add_callback(lambda _: self.acknowledge())
                sent.add_errback(self.acknowledge)
            self.pause()
        producer.flush(WAIT_TIMEOUT_S)
        producer.close()


class AioStream(Stream):
    def run(self) -> None:
        aio.run(self._send())

    async def _send(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.address, enable_idempotence=True, linger_ms=2
        )
        await producer.start()
        while not self.is_stopping:
            for topic, row in self.next_rows():
                sent = await producer.send(topic, row.value, partition=row.partition)
                sent.add_done_callback(lambda done: self.acknowledge(done.exception()))
            await asyncio.sleep(0.002)
        await producer.flush()
        await producer.stop()


STREAMS = (ConfluentStream, KafkaPythonStream, AioStream)


def test_idempotent_producers_survive_kills(own_node: NodeProcess, make_topic: MakeTopic) -> None:
    node = own_node
    streams = [
        kind(
            node.address,
            [
                make_topic(node, partitions=PARTITIONS, storage_type=storage_type)
                for storage_type in ("EngineRocksDB", "EngineSegment")
            ],
        )
        for kind in STREAMS
    ]
    for stream in streams:
        stream.start()
    try:
        for _ in range(KILLS):
            for stream in streams:
                stream.wait_acknowledged(stream.acknowledged + PROGRESS)
            node.kill()
            node.start()
        for stream in streams:
            stream.wait_acknowledged(stream.acknowledged + PROGRESS)
    finally:
        for stream in streams:
            stream.finish()
    for stream in streams:
        assert not stream.failures
        for topic in stream.topics:
            seen = Confluent().read(node.address, topic, stream.sent, partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                values = [int(s.row.value or b"") for s in seen if s.row.partition == partition]
                expected = len(range(partition, stream.sent, PARTITIONS))
                assert values == list(range(expected)), (type(stream).__name__, topic)
            ends = [
                Confluent().bounds(node.address, topic, partition)[1]
                for partition in range(PARTITIONS)
            ]
            assert sum(ends) == stream.sent


def test_groups_and_offsets_survive_a_kill(
    tmp_path_factory: pytest.TempPathFactory, make_topic: MakeTopic, new_name: Callable[[], str]
) -> None:
    node = NodeProcess(tmp_path_factory.mktemp("groups") / "data", QUICK)
    node.start()
    try:
        topic, group, notes = make_topic(node, partitions=4), new_name(), new_name()
        admin = AdminClient({"bootstrap.servers": node.address})
        with Confluent().writer(node.address) as writer:
            writer.write(topic, numbered(40, prefix="before", partitions=4))
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": node.address, "group.id": notes, "enable.auto.commit": False}
        )
        consumer.commit(offsets=[TopicPartition(topic, 2, 9, metadata="note")], asynchronous=False)
        with Crew(node.address, group, topic) as crew:
            first, second = crew.join("confluent"), crew.join("kafka-python")
            crew.wait_sizes(4, (first, 2), (second, 2))
            crew.wait(lambda: len(set(crew.values())) == 40)
            node.kill()
            node.start()
            # Both are members still, and go on where they were.
            with Confluent().writer(node.address) as writer:
                writer.write(topic, numbered(40, prefix="after", partitions=4))
            crew.wait(lambda: len(set(crew.values())) == 80)
            found = admin.describe_consumer_groups([group])[group].result(60)
            assert found.state is ConsumerGroupState.STABLE
            assert len(found.members) == 2
        (kept,) = consumer.committed([TopicPartition(topic, 2)], timeout=60)
        assert (kept.offset, kept.metadata) == (9, "note")
        consumer.close()
    finally:
        node.close()


def test_a_stop_loses_no_acknowledgement(
    client: Client, own_node: NodeProcess, make_topic: MakeTopic
) -> None:
    node = own_node
    kind = dict(zip(("confluent", "kafka-python", "aiokafka"), STREAMS, strict=True))[client.name]
    topic = make_topic(node, partitions=PARTITIONS)
    stream = kind(node.address, [topic])
    stream.start()
    try:
        stream.wait_acknowledged(300)
        assert node.terminate() == 0
        node.start()
        stream.wait_acknowledged(stream.acknowledged + 300)
    finally:
        stream.finish()
    assert not stream.failures
    seen = Confluent().read(node.address, topic, stream.sent, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        values = [int(s.row.value or b"") for s in seen if s.row.partition == partition]
        assert values == list(range(len(range(partition, stream.sent, PARTITIONS))))
