"""Clients that misbehave cost themselves their connection, and nobody else anything."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.kafka.clients import Confluent
from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import Row
from tests.integration.kafka.steady import Steady
from tests.integration.kafka.wire import API_VERSIONS, PRODUCE, Wire, metadata_request, request

MIB = 1024 * 1024
CONNECTION_COUNT = 5_000 if os.environ.get("FIRN_SOAK") == "1" else 1_000
CONNECTION_BYTES_MAX = 20 * 1024
"""Memory an idle connection may take in the node, all told."""


@pytest.fixture
def steady(node: NodeProcess, make_topic: MakeTopic) -> Iterator[Steady]:
    """Somebody who works on meanwhile and must not notice."""
    with Steady(node.address, make_topic(node)) as client:
        yield client


@contextlib.contextmanager
def bounded_memory(node: NodeProcess, growth_bytes: int) -> Iterator[None]:
    before = node.resident_bytes()
    yield
    assert node.is_running, node.errors()
    assert node.resident_bytes() - before < growth_bytes


@pytest.mark.usefixtures("steady")
def test_garbage(node: NodeProcess) -> None:
    chance = random.Random(20)
    with bounded_memory(node, 100 * MIB):
        for _ in range(300):
            with Wire(node.port) as wire:
                noise = chance.randbytes(chance.randrange(1, 2_000))
                shape = chance.randrange(3)
                if shape == 0:  # Noise as it is: the length is noise too.
                    wire.send(noise)
                elif shape == 1:  # A whole frame of noise.
                    wire.send(struct.pack(">i", len(noise)) + noise)
                else:  # A header that looks right, before noise.
                    key = chance.choice((0, 1, 2, 3, 8, 9, 10, 11, 14, 18, 19, 22, 32, 44, 60))
                    wire.send(request(key, chance.randrange(13), 1, noise))
        with Wire(node.port) as wire:
            wire.send(request(API_VERSIONS, 0, 77))
            assert wire.receive()[:4] == struct.pack(">i", 77)


@pytest.mark.usefixtures("steady")
def test_mutated_requests(node: NodeProcess) -> None:
    """Right requests with a few bytes changed."""
    chance = random.Random(21)
    templates = [
        request(API_VERSIONS, 0, 1),
        metadata_request(2),
        # Produce version 7 to one partition, with a batch of noise.
        request(
            PRODUCE,
            7,
            3,
            struct.pack(">hhii", -1, 1, 1000, 1)
            + struct.pack(">h", 4)
            + b"none"
            + struct.pack(">iii", 1, 0, 80)
            + chance.randbytes(80),
        ),
    ]
    with bounded_memory(node, 100 * MIB):
        for _ in range(300):
            frame = bytearray(chance.choice(templates))
            for _ in range(chance.randrange(1, 4)):
                frame[chance.randrange(4, len(frame))] = chance.randrange(256)
            with Wire(node.port) as wire:
                wire.send(bytes(frame))


@pytest.mark.usefixtures("steady")
def test_half_frames(node: NodeProcess) -> None:
    with contextlib.ExitStack() as wires, bounded_memory(node, 50 * MIB):
        for index in range(200):
            wire = wires.enter_context(Wire(node.port))
            wire.send(request(API_VERSIONS, 0, 1)[: 2 + index % 14])


@pytest.mark.parametrize("length", [2**31 - 1, 300 * MIB, -1, -(2**31), 0, 7])
def test_impossible_lengths_end_the_connection(length: int, node: NodeProcess) -> None:
    with bounded_memory(node, 50 * MIB), Wire(node.port) as wire:
        wire.send(struct.pack(">i", length) + bytes(100))
        assert wire.is_closed_by_peer()


@pytest.mark.usefixtures("steady")
def test_a_claimed_length_takes_no_memory(node: NodeProcess, make_topic: MakeTopic) -> None:
    """Large frames are allowed, but only bytes that have come are worth memory."""
    with contextlib.ExitStack() as wires, bounded_memory(node, 200 * MIB):
        for _ in range(50):
            wire = wires.enter_context(Wire(node.port))
            wire.send(struct.pack(">i", 90 * MIB) + bytes(1000))
        with Wire(node.port) as wire:
            wire.send(request(API_VERSIONS, 0, 5))
            assert wire.receive()[:4] == struct.pack(">i", 5)
        # Nor does it take the room that others need: 50 times 90 MiB are more than there is.
        topic = make_topic(node, max_message_bytes=8 * MIB, max_record_bytes=8 * MIB)
        with Confluent().writer(node.address) as writer:
            for number in range(5):
                assert writer.write(topic, [Row(value=bytes(5 * MIB))]) == [number]


def test_frames_of_any_size_in_any_pieces(node: NodeProcess, make_topic: MakeTopic) -> None:
    """Several clients send large frames in pieces, some hang up in the middle; all whole ones are
    answered while others stand half-sent."""
    chance = random.Random(22)
    with contextlib.ExitStack() as wires:
        halves = [wires.enter_context(Wire(node.port)) for _ in range(10)]
        for half in halves:
            size = chance.randrange(70_000, 20 * MIB)
            half.send(struct.pack(">i", size) + bytes(chance.randrange(size // 2)))
        for index in range(20):
            body = bytes(chance.randrange(60_000, 3 * MIB))
            # Version 0 of this request ends before its padding, so the frame is refused as a
            # whole and the connection closed: the node has seen all of it.
            frame = request(API_VERSIONS, 0, index, body)
            with Wire(node.port) as wire:
                at = 0
                while at < len(frame):
                    piece = chance.randrange(1, MIB)
                    wire.send(frame[at : at + piece])
                    at += piece
                assert wire.receive()[:4] in (b"", struct.pack(">i", index))
    with Confluent().writer(node.address) as writer:
        assert writer.write(make_topic(node), [Row(value=b"v")]) == [0]


def test_requests_of_a_client_that_is_gone_are_carried_out(
    node: NodeProcess, new_name: Callable[[], str]
) -> None:
    """Asking about a topic makes it; half of one would be in everybody's way for ever."""
    names = [new_name() for _ in range(20)]
    for index, name in enumerate(names):
        with Wire(node.port) as wire:
            wire.send(metadata_request(index, name))
    for name in names:
        with Confluent().writer(node.address) as writer:
            assert writer.write(name, [Row(value=b"v")]) == [0]


def test_a_sender_of_single_bytes_is_served(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        for byte in request(API_VERSIONS, 0, 9) + metadata_request(10):
            wire.send(bytes([byte]))
        assert wire.receive()[:4] == struct.pack(">i", 9)
        assert wire.receive()[:4] == struct.pack(">i", 10)


@pytest.mark.parametrize("api_key", [4, 5, 6, 7, 29, 68, 71, 75, 999, -5])
def test_unknown_requests_end_the_connection(api_key: int, node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        wire.send(request(api_key, 0, 1, bytes(20)))
        assert wire.receive() == b""


def test_pipelined_requests_are_answered_in_order(node: NodeProcess) -> None:
    count = 1_000
    frames = [
        request(API_VERSIONS, 0, index) if index % 2 else metadata_request(index)
        for index in range(count)
    ]
    with Wire(node.port) as wire:
        wire.send(b"".join(frames))
        for index in range(count):
            assert wire.receive()[:4] == struct.pack(">i", index)


@pytest.mark.usefixtures("steady")
def test_a_client_that_reads_nothing_is_held_back(node: NodeProcess) -> None:
    with Wire(node.port) as wire, bounded_memory(node, 100 * MIB):
        frames = b"".join(metadata_request(index) for index in range(2_000))
        refused = 0
        for _ in range(2_000):
            refused = refused + 1 if wire.send_some(frames) == 0 else 0
            if refused == 50:
                break
            # Another connection's round trip gives the node its turn.
            with Wire(node.port) as other:
                other.send(request(API_VERSIONS, 0, 1))
                assert other.receive()
        assert refused == 50, "the node takes requests without end"


def test_many_idle_connections(tmp_path: Path, make_topic: MakeTopic) -> None:
    room = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if room < CONNECTION_COUNT + 200:
        pytest.skip(f"{room} open files are not enough for {CONNECTION_COUNT} connections")
    limit = str(CONNECTION_COUNT + 100)
    node = NodeProcess(tmp_path / "data", {"FIRN_KAFKA_CONNECTIONS_PER_ADDRESS_MAX": limit})
    growth_max = CONNECTION_COUNT * CONNECTION_BYTES_MAX + 20 * MIB
    node.start()
    try:
        with (
            Steady(node.address, make_topic(node)) as steady,
            contextlib.ExitStack() as wires,
            bounded_memory(node, growth_max),
        ):
            held = [wires.enter_context(Wire(node.port)) for _ in range(CONNECTION_COUNT)]
            for index, wire in enumerate(held):
                wire.send(request(API_VERSIONS, 0, index))
            for index, wire in enumerate(held):
                assert wire.receive()[:4] == struct.pack(">i", index)
            steady.wait_progress()
        assert node.is_running
    finally:
        node.close()
