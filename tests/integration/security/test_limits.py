"""Limits: each refusal concerns one client, and everyone else is served as before."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from firnmq.brokers.kafka.protocol import ApiKey
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersionsRequest
from tests.integration.admin.serving import Served
from tests.integration.security.wire import Wire

CONNECTIONS = 6
MIB = 1024 * 1024
UNKNOWN_FRAME = (8 * MIB).to_bytes(4, "big") + b"\0\x63\0\0" + bytes(8 * MIB - 4)
"""As large as may be; nobody knows the API, so its connection ends when all of it has come."""


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node with little patience and little room."""
    served = Served(
        tmp_path_factory.mktemp("tight") / "data",
        settings={
            "FIRN_KAFKA_CONNECTIONS_PER_ADDRESS_MAX": str(CONNECTIONS),
            "FIRN_KAFKA_IDLE_TIMEOUT_S": "5",
            "FIRN_KAFKA_FRAME_BYTES_MAX": str(8 * MIB),
            "FIRN_KAFKA_TOTAL_BYTES_IN_FLIGHT_MAX": str(9 * MIB),
            "FIRN_KAFKA_BYTES_IN_FLIGHT_MAX": str(MIB),
        },
    )
    try:
        yield served
    finally:
        assert served.stop() == 0


@pytest.fixture(autouse=True)
def _everyone_else_is_served(tight: Served) -> Iterator[None]:
    yield
    AdminClient({"bootstrap.servers": tight.kafka}).list_topics(timeout=60)


def ask(wire: Wire) -> bool:
    return wire.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()) is not None


def limited(node: Served, limit: str) -> float:
    return node.metric(f'firn_connections_limited_total{{limit="{limit}"}}')


def wait_held(node: Served, size: int) -> None:
    """Returns when the node holds so many bytes of requests."""
    deadline = time.monotonic() + 60
    while (held := node.metric("firn_bytes_in_flight")) != size:
        assert time.monotonic() < deadline, held


def test_connections_per_address(tight: Served) -> None:
    """The one too many is closed; those before it are served, and room comes back."""
    before = limited(tight, "connections_per_address")
    wires: list[Wire] = []
    try:
        for _ in range(CONNECTIONS + 1):
            wires.append(Wire(tight, None))
            if not ask(wires[-1]):
                break
        assert limited(tight, "connections_per_address") == before + 1
        assert ask(wires[-2])
        tight.wait_for_log(lambda line: "connection_refused" in line and "127.0.0.1" in line)
    finally:
        for wire in wires:
            wire.close()


def test_a_connection_that_says_nothing_is_closed(tight: Served) -> None:
    before = limited(tight, "idle_timeout")
    with Wire(tight, None) as wire:
        assert ask(wire)
        assert wire.is_closed()
    assert limited(tight, "idle_timeout") > before, "others may be idle too"


def test_a_frame_that_never_ends_is_not_waited_for(tight: Served) -> None:
    with Wire(tight, None) as wire:
        wire.send((4 * MIB).to_bytes(4, "big") + b"\0" * 1000)
        assert wire.is_closed()
    wait_held(tight, 0)


@pytest.mark.parametrize("size", [-1, 0, 7, 8 * MIB + 1, 2**31 - 1])
def test_frames_of_impossible_size(tight: Served, size: int) -> None:
    with Wire(tight, None) as wire:
        wire.send(size.to_bytes(4, "big", signed=True))
        assert wire.is_closed()


@pytest.mark.parametrize("frame", [b"\xff" * 64, b"\0\x12\0\x03" + b"\xff" * 60, b"\0\x63" * 20])
def test_frames_of_nonsense(tight: Served, frame: bytes) -> None:
    with Wire(tight, None) as wire:
        wire.send(len(frame).to_bytes(4, "big") + frame)
        answer = wire.frame()
        assert answer is None or len(answer) > 4
    assert not any("Traceback" in line for line in tight.log)


def test_half_a_small_frame_is_not_waited_for(tight: Served) -> None:
    with Wire(tight, None) as wire:
        assert ask(wire)
        wire.send((1000).to_bytes(4, "big") + bytes(500))
        assert wire.is_closed()


def test_a_claimed_length_keeps_nobody_waiting(tight: Served) -> None:
    """Frames of 8 MiB are announced, each nearly all there is; only what has come counts."""
    with contextlib.ExitStack() as wires:
        for _ in range(CONNECTIONS // 2):
            wire = wires.enter_context(Wire(tight, None))
            wire.send((8 * MIB).to_bytes(4, "big") + bytes(1000))
        wait_held(tight, CONNECTIONS // 2 * MIB)
        with Wire(tight, None) as other:
            other.send(UNKNOWN_FRAME)
            assert other.is_closed()


def test_large_frames_that_do_not_fit_together_all_end(tight: Served) -> None:
    """Frames of 8 MiB, of which 9 MiB may be held: none is lost and none waits for ever."""

    def send() -> None:
        with Wire(tight, None) as wire:
            wire.send(UNKNOWN_FRAME)
            assert wire.is_closed()

    with ThreadPoolExecutor(CONNECTIONS - 2) as pool:
        for sent in [pool.submit(send) for _ in range(12)]:
            sent.result()
    wait_held(tight, 0)


def test_a_client_that_hangs_up_in_mid_frame_leaves_nothing(tight: Served) -> None:
    host, _, port = tight.kafka.rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), 10) as half:
            half.sendall((8 * MIB).to_bytes(4, "big") + b"\0" * 100_000)
    wait_held(tight, 0)


def test_memory_does_not_grow_with_refusals(tight: Served, tmp_path: Path) -> None:
    status = Path(f"/proc/{tight.process.pid}/statm")
    for _ in range(200):
        with Wire(tight, None) as wire:
            wire.send((2**31 - 1).to_bytes(4, "big"))
            assert wire.is_closed()
    assert int(status.read_text().split()[1]) * 4096 < 300 * MIB
