"""Clients that stop in the middle of large frames do not hold up others.

Every attacker has an address of its own, as far as the loopback network has them. A client that is
held up runs into a time-out; nothing here measures how long anything takes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess

MIB = 1024 * 1024
BUDGET = 32 * MIB
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 22)]
CLIENT_TIMEOUT_MS = 8_000
"""The attack held up requests for 44 seconds once."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with little memory for requests."""
    node = NodeProcess(
        tmp_path / "data",
        {
            "FIRN_KAFKA_TOTAL_BYTES_IN_FLIGHT_MAX": str(BUDGET),
            "FIRN_KAFKA_CLIENT_BYTES_IN_FLIGHT_MAX": str(BUDGET // 4),
        },
    )
    node.start()
    try:
        yield node
    finally:
        node.close()


def attack(port: int, address: str, sent: int) -> socket.socket:
    """A connection that announces 50 MiB and sends what the node takes of the first few."""
    client = socket.create_connection(("127.0.0.1", port), 10, source_address=(address, 0))
    client.setblocking(False)
    rest = memoryview(struct.pack(">i", 50 * MIB) + bytes(sent))
    for _ in range(1_000):
        try:
            rest = rest[client.send(rest[:MIB]) :]
        except BlockingIOError:  # The node does not read, and the kernel's buffers are full.
            break
        if not rest:
            break
    return client


@pytest.mark.parametrize("sent", [100_000, 3 * MIB])
def test_half_sent_frames_from_many_addresses(
    sent: int, small: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(small, max_message_bytes=2 * MIB, max_record_bytes=2 * MIB)
    outcomes: list[str | None] = []

    def delivered(error: object, _: object) -> None:
        outcomes.append(None if error is None else str(error))

    with contextlib.ExitStack() as open_sockets:
        for count in range(200 if sent < MIB else 40):
            address = ADDRESSES[count % len(ADDRESSES)]
            open_sockets.enter_context(attack(small.port, address, sent))
        # Nothing is sent twice: a request that is held up for long fails.
        producer = Producer(
            {
                "bootstrap.servers": small.address,
                "message.max.bytes": 2 * MIB,
                "retries": 0,
                "message.timeout.ms": CLIENT_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        for _ in range(5):
            producer.produce(topic, bytes(900_000), on_delivery=delivered)
            producer.flush(60)
    assert outcomes == [None] * 5
    assert small.is_running
