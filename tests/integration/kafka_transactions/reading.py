"""What a topic holds for those who want everything, and for those who want what is certain."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

DEADLINE_S = 60.0
_PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN")
"""What a client says while the node is started again."""


def consumer(address: str, isolation: str, **options: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reading",
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            **options,
        }
    )


def read_all(address: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[str]:
    """Every value up to the end that the isolation level has now, partition by partition."""
    isolation = "read_committed" if committed else "read_uncommitted"
    reader = consumer(address, isolation)
    values: list[str] = []
    try:
        for number in range(partitions):
            reader.assign([TopicPartition(topic, number, 0)])
            give_up_s = time.monotonic() + DEADLINE_S
            while True:
                assert time.monotonic() < give_up_s, f"no end of {topic} [{number}]"
                message = reader.poll(1)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    value = message.value()
                    assert isinstance(value, bytes)
                    values.append(value.decode())
                elif error.name() == "_PARTITION_EOF":
                    break
                elif not error.retriable() and error.name() not in (
                    "_TRANSPORT",
                    "_ALL_BROKERS_DOWN",
                ):
                    raise AssertionError(str(error))
    finally:
        reader.close()
    return values


def committed_offset(address: str, group: str, topic: str, partition: int = 0) -> int:
    reader = consumer(address, "read_committed", **{"group.id": group})
    try:
        (found,) = reader.committed([TopicPartition(topic, partition)], timeout=DEADLINE_S)
        return int(found.offset)
    finally:
        reader.close()
