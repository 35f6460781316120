"""Strangers that open connections until the descriptors end do not keep storage from its files."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.admin.serving import Served
from tests.integration.security.conftest import Authority, Identity, tls_settings

DESCRIPTORS = 1024
STRANGERS = 1_100
STRANGER = "127.0.0.2"
API_VERSIONS = bytes((0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255))


@pytest.fixture(autouse=True)
def _enough_here() -> Iterator[None]:
    """This process has a socket for every stranger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_strangers_do_not_take_the_descriptors_of_storage(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", descriptors=DESCRIPTORS)
    try:
        host, _, port = served.kafka.rpartition(":")
        with contextlib.ExitStack() as stack:
            for _ in range(STRANGERS):
                with contextlib.suppress(ConnectionError):
                    stranger = socket.create_connection(
                        (host, int(port)), timeout=60, source_address=(STRANGER, 0)
                    )
                    stack.enter_context(stranger)
            served.wait_for_log(lambda line: "connection_refused" in line and STRANGER in line)
            limit = 'firn_connections_limited_total{limit="connections_per_address"}'
            assert served.metric(limit) > 0
            # Clients of other addresses connect, and storage opens the files of their shards.
            admin = AdminClient({"bootstrap.servers": served.kafka})
            topics = [NewTopic(f"t{i}", 10) for i in range(20)]
            for made in admin.create_topics(topics, request_timeout=60).values():
                made.result(60)
            producer = Producer({"bootstrap.servers": served.kafka})
            failed: list[object] = []
            for i in range(200):
                producer.produce(
                    f"t{i % 20}",
                    b"v",
                    partition=i // 20,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
            assert producer.flush(60) == 0
            assert not failed
        refusals = [line for line in served.log if "connection_refused" in line]
        assert len(refusals) < STRANGERS // 20, "one line in ten seconds, not one for each"
    finally:
        assert served.stop() == 0


def test_connections_that_never_finish_their_tls_handshake_count(
    tmp_path: Path, identity: Identity
) -> None:
    served = Served(
        tmp_path / "data",
        settings={
            **tls_settings(identity),
            "FIRN_KAFKA_CONNECTIONS_PER_ADDRESS_MAX": "3",
        },
    )
    try:
        host, _, port = served.kafka.rpartition(":")
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
                for _ in range(4)
            ]
            with contextlib.suppress(ConnectionError):
                assert silent[3].recv(1) == b"", "the one too many is closed at once"
        served.wait_for_log(lambda line: "connection_refused" in line)
    finally:
        assert served.stop() == 0


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "handshaking"])
def test_silent_connections_give_way_to_a_new_one_of_another_address(
    tmp_path: Path, authority: Authority, identity: Identity, is_tls: bool
) -> None:
    """1. Connections of two addresses take all places; one of them has asked something. 2. A new
    one of a third address is served in place of the oldest that has not. 3. Of their own addresses
    no further one is."""
    settings = tls_settings(identity) if is_tls else {}
    served = Served(tmp_path / "data", settings={**settings, "FIRN_KAFKA_CONNECTIONS_MAX": "4"})
    host, _, port = served.kafka.rpartition(":")

    def connected(source: str) -> socket.socket:
        return stack.enter_context(
            socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))
        )

    def asked(source: str) -> socket.socket:
        client = connected(source)
        if is_tls:
            context = ssl.create_default_context(cafile=str(authority.certificate))
            client = stack.enter_context(context.wrap_socket(client, server_hostname="localhost"))
        client.sendall(API_VERSIONS)
        assert client.recv(4)
        return client

    try:
        with contextlib.ExitStack() as stack:
            asked("127.0.0.2")
            silent = [connected(f"127.0.0.{2 + number % 2}") for number in range(3)]
            for number in range(3):
                asked(f"127.0.0.{4 + number}")
                assert silent[number].recv(1) == b""
            refused = connected("127.0.0.9")
            assert refused.recv(1) == b""
    finally:
        assert served.stop() == 0
