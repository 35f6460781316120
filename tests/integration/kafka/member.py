"""A consumer of a group as a process of its own, so that a test can kill it.

It prints a line of JSON for each change of its assignment and for each record, commits what it has
printed, and leaves its group when it is told to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from typing import Any

SESSION_MS = 60_000
"""Nobody is taken for dead because the machine is busy; who is to be missed soon is told so."""

HEARTBEAT_MS = 300


class Stop(Exception):
    """The process has been told to end."""


def say(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Assignment:
    """Tells of changes only."""

    def __init__(self) -> None:
        self._last: list[int] | None = None

    def update(self, partitions: Any) -> None:
        current = sorted(each.partition for each in partitions)
        if current != self._last:
            self._last = current
            say(assigned=current)


def tell(partition: int, offset: int, value: bytes) -> None:
    say(record=[partition, offset, value.decode()])


def run_confluent(options: argparse.Namespace) -> None:
    import confluent_kafka

    config: dict[str, Any] = {
        "bootstrap.servers": options.address,
        "group.id": options.group,
        "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": options.strategy,
    }
    if options.protocol == "consumer":
        # The coordinator has the time-outs, and an assignor of its own.
        for name in (
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "partition.assignment.strategy",
        ):
            del config[name]
        config["group.protocol"] = "consumer"
        config["group.remote.assignor"] = options.strategy
    if options.instance:
        config["group.instance.id"] = options.instance
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([options.topic])
    assignment = Assignment()
    try:
        while True:
            messages = consumer.consume(100, 0.1)
            assignment.update(consumer.assignment())
            for message in messages:
                if message.error() is None:
                    tell(message.partition(), message.offset(), message.value())
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except confluent_kafka.KafkaException:
                    continue  # A rebalance came first: whoever has the partition reads it again.
    except Stop:
        consumer.close()


def run_kafka_python(options: argparse.Namespace) -> None:
    import kafka
    import kafka.errors
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = kafka.KafkaConsumer(
        options.topic,
        bootstrap_servers=options.address,
        group_id=options.group,
        group_instance_id=options.instance or None,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    assignment = Assignment()
    try:
        while True:
            try:
                # Shorter than a rebalance, its time-out makes this client lose the assignment.
                batches = consumer.poll(timeout_ms=500)
            except kafka.errors.RetriableError:
                # While a node is away, this client hands failed look-ups of the coordinator to
                # its caller, who is to poll again; the member stays in the group.
                continue
            assignment.update(consumer.assignment())
            for records in batches.values():
                for record in records:
                    tell(record.partition, record.offset, record.value)
            if batches:
                try:
                    consumer.commit()
                except kafka.errors.KafkaError:
                    continue
    except Stop:
        consumer.close()


async def run_aiokafka(options: argparse.Namespace) -> None:
    import aiokafka
    import aiokafka.errors
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = aiokafka.AIOKafkaConsumer(
        options.topic,
        bootstrap_servers=options.address,
        group_id=options.group,
        group_instance_id=options.instance or None,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    await consumer.start()
    assignment = Assignment()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    while not stopping.is_set():
        batches = await consumer.getmany(timeout_ms=100)
        assignment.update(consumer.assignment())
        for records in batches.values():
            for record in records:
                tell(record.partition, record.offset, record.value)
        if batches:
            try:
                await consumer.commit()
            except aiokafka.errors.KafkaError:
                continue
    await consumer.stop()


def _raise_stop(*_: object) -> None:
    raise Stop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client")
    parser.add_argument("address")
    parser.add_argument("group")
    parser.add_argument("topic")
    parser.add_argument("--instance", default="")
    parser.add_argument("--strategy", default="range")
    parser.add_argument("--protocol", default="classic")
    parser.add_argument("--session-ms", type=int, default=SESSION_MS)
    options = parser.parse_args()
    if options.client == "aiokafka":
        asyncio.run(run_aiokafka(options))
        return
    signal.signal(signal.SIGTERM, _raise_stop)
    try:
        {"confluent": run_confluent, "kafka-python": run_kafka_python}[options.client](options)
    except Stop:
        return  # It came before there was a consumer to close.


if __name__ == "__main__":
    main()
