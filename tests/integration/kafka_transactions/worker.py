"""A worker that copies a topic exactly once: run as a process, killed at any moment.

Reads its input, writes each value to the output, and commits both its output and its place in the
input with one transaction.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

BATCH_RECORDS = 25
TIMEOUT_S = 60


class Restart(Exception):
    """What went wrong can be put right by beginning anew."""


def main(address: str, source: str, target: str, group: str, name: str) -> None:
    while True:
        try:
            work(address, source, target, group, name)
        except (Restart, KafkaException):
            continue  # The node is being restarted, or the group is moving: as after a crash.


def work(address: str, source: str, target: str, group: str, name: str) -> None:
    sender = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0})
    sender.init_transactions(TIMEOUT_S)
    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 2_000,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 50,
        }
    )
    reader.subscribe([source])
    try:
        while True:
            messages = [each for each in reader.consume(BATCH_RECORDS, 0.2) if not each.error()]
            if messages:
                copy(sender, reader, messages, target)
                print(len(messages), flush=True)
    finally:
        reader.close()


def copy(sender: Producer, reader: Consumer, messages: list[Message], target: str) -> None:
    sender.begin_transaction()
    try:
        for message in messages:
            sender.produce(target, message.value(), partition=int(message.value() or b"0") % 2)
        places = {(each.topic(), each.partition()): each.offset() + 1 for each in messages}
        offsets = [TopicPartition(*place, offset) for place, offset in places.items()]
        sender.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), TIMEOUT_S)
        sender.commit_transaction(TIMEOUT_S)
    except (KafkaException, BufferError) as error:
        raise Restart from error  # A new instance aborts what this one has begun.


if __name__ == "__main__":
    main(*sys.argv[1:])
