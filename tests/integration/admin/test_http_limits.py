"""Clients of the HTTP listener that send nothing, too little or too much do not affect others."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.server.admin.http.connection import STREAMS_MAX
from tests.integration.admin.serving import TIMEOUT_S, Served

MIB = 1024 * 1024
PLACES = 4


@contextlib.contextmanager
def serving(path: Path, **settings: object) -> Iterator[Served]:
    named = {f"FIRN_ADMIN_{name.upper()}": str(value) for name, value in settings.items()}
    served = Served(path / "data", settings=named)
    try:
        yield served
    finally:
        assert served.stop() == 0


def connected(node: Served, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(address_of(node), TIMEOUT_S, source_address=(source, 0))


def begun(node: Served, size: int, source: str = "127.0.0.1") -> socket.socket:
    """A request whose header has been read, and whose body is waited for."""
    client = connected(node, source)
    client.sendall(
        b"POST /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % size
    )
    assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
    return client


def test_three_hundred_silent_connections(tmp_path: Path) -> None:
    with serving(tmp_path) as node, contextlib.ExitStack() as clients:
        for _ in range(300):
            clients.enter_context(connected(node))
        assert node.get("/health/live") == {"status": "live"}
        assert node.get("/v1/topics") == []


def test_health_is_answered_while_every_place_is_taken(tmp_path: Path) -> None:
    with serving(tmp_path, connections_max=PLACES, body_timeout_s=600) as node:
        with contextlib.ExitStack() as clients:
            for _ in range(PLACES):
                clients.enter_context(begun(node, 100))
            for _ in range(100):
                clients.enter_context(connected(node))
            assert node.get("/health/live") == {"status": "live"}
            assert node.call("GET", "/v1/topics").status == 503
            assert node.get("/health/ready") == {"status": "ready"}
        deadline = time.monotonic() + TIMEOUT_S
        while node.call("GET", "/v1/topics").status != 200:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("sent", [b"", b"GET /v1/topics HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
def test_a_header_that_does_not_come(tmp_path: Path, sent: bytes) -> None:
    with serving(tmp_path, header_timeout_s=0.5) as node, connected(node) as client:
        client.sendall(sent)
        said = client.recv(1000)
        assert said.startswith(b"HTTP/1.1 408 ") if sent else said == b""
        while said:
            said = client.recv(1000)
        assert node.metric('firn_connections_limited_total{limit="http_header_timeout"}') == 1


def test_a_second_header_that_does_not_come(tmp_path: Path) -> None:
    with serving(tmp_path, header_timeout_s=0.5) as node, connected(node) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /heal")
        said = b""
        while more := client.recv(1000):
            said += more
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in said


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_body_that_does_not_come(tmp_path: Path, method: str) -> None:
    """GET answers without its body, and the connection is not kept for the rest of it."""
    with serving(tmp_path, body_timeout_s=0.5) as node, connected(node) as client:
        client.sendall(
            f"{method} /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{".encode()
        )
        said = b""
        while more := client.recv(1000):
            said += more
        assert said.startswith(b"HTTP/1.1 408 " if method == "POST" else b"HTTP/1.1 200 ")
        assert node.metric('firn_connections_limited_total{limit="http_body_timeout"}') == 1
        assert not any("Traceback" in line for line in node.log)


def test_half_sent_bodies_have_one_budget(tmp_path: Path) -> None:
    """1. Most of a body has come, and is held. 2. Another does not fit. 3. When the first client
    is gone, it does."""
    with serving(
        tmp_path, body_bytes_max=6 * MIB, body_bytes_total_max=6 * MIB, body_timeout_s=600
    ) as node:

        def wait_held(size: int) -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while node.metric("firn_http_body_bytes") != size:
                assert time.monotonic() < deadline

        two = b" " * (2 * MIB)
        assert node.call("POST", "/v1/topics", two).status == 400, "it fits, and is no JSON"
        with begun(node, 6 * MIB) as half:
            half.sendall(b" " * (5 * MIB))
            wait_held(5 * MIB)
            assert node.call("POST", "/v1/topics", two).status == 503
            assert node.get("/v1/topics") == []
        wait_held(0)
        assert node.call("POST", "/v1/topics", two).status == 400


def test_a_body_that_is_announced_too_large_is_not_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path, body_bytes_max=1000) as node, connected(node) as client:
        client.sendall(
            b"POST /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1001\r\n\r\n"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_half_sent_bodies_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    """1. One address sends bodies and does not end them, until it is refused. 2. A client with
    another address is served."""
    with (
        serving(tmp_path, body_bytes_max=MIB, body_bytes_total_max=4 * MIB) as node,
        contextlib.ExitStack() as clients,
    ):
        nearly = b" " * (MIB - 1)
        for _ in range(2):
            clients.enter_context(begun(node, MIB, "127.0.0.2")).sendall(nearly)
        deadline = time.monotonic() + TIMEOUT_S
        while node.metric("firn_http_body_bytes") != 2 * len(nearly):
            assert time.monotonic() < deadline
        third = clients.enter_context(begun(node, MIB, "127.0.0.2"))
        third.sendall(nearly)
        assert third.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert node.call("POST", "/v1/topics", nearly).status == 400, "it fits, and is no JSON"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"records":[' + b"{}," * 300_000 + b"{}]}", 400),
        (b'{"records":[{"headers":[' + b"{}," * 1_000_000 + b"{}]}]}", 413),
    ],
)
def test_small_records_without_number_are_refused(tmp_path: Path, body: bytes, status: int) -> None:
    with serving(tmp_path) as node:
        node.call("POST", "/v1/topics", {"topic": "t"})
        answer = node.call("POST", "/v1/topics/t/records", body)
        assert answer.status == status, answer.raw
        records = {"records": [{}] * 10_000}
        assert node.call("POST", "/v1/topics/t/records", records).status == 200


def test_a_client_with_many_large_documents_holds_up_only_itself(tmp_path: Path) -> None:
    """1. A topic has so many shards that its documents take a while. 2. One address asks for 40.
    3. Another address gets its own before most of them are there."""
    with serving(tmp_path) as node, contextlib.ExitStack() as clients:
        assert node.call("POST", "/v1/topics", {"topic": "t", "shard_count": 1000}).status == 200
        asking = [clients.enter_context(connected(node, "127.0.0.2")) for _ in range(40)]
        other = clients.enter_context(connected(node))
        for client in asking:
            client.sendall(b"GET /v1/topics/t/segments HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        select.select(asking, [], [], TIMEOUT_S)
        other.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert other.recv(1000).startswith(b"HTTP/1.1 200 ")
        answered, _, _ = select.select(asking, [], [], 0)
        assert len(answered) < len(asking) // 2


@pytest.mark.parametrize("path", ["/metrics", "/v1/topics/t/segments"])
def test_health_is_answered_between_large_documents(tmp_path: Path, path: str) -> None:
    """1. A topic has so many shards that its documents take a while. 2. Many clients ask for one at
    once. 3. When the first has it, health is answered before most of the others have theirs."""
    with serving(tmp_path) as node, contextlib.ExitStack() as clients:
        assert node.call("POST", "/v1/topics", {"topic": "t", "shard_count": 1000}).status == 200
        asking = [clients.enter_context(connected(node)) for _ in range(40)]
        probe = clients.enter_context(connected(node))
        for client in asking:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        select.select(asking, [], [], TIMEOUT_S)
        probe.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert probe.recv(1000).startswith(b"HTTP/1.1 200 ")
        answered, _, _ = select.select(asking, [], [], 0)
        assert len(answered) < len(asking) // 2


def test_readers_that_take_nothing_hold_a_bounded_number_of_pages(tmp_path: Path) -> None:
    """1. Many readers of one address take nothing; as many as may have a page of records get one.
    2. Another address reads everything, and health is answered. 3. Readers that take nothing are
    disconnected for those that wait."""
    record = {"value": "x" * 900_000}
    limited = 'firn_connections_limited_total{limit="http_send_timeout"}'
    with serving(tmp_path) as node, contextlib.ExitStack() as clients:
        assert node.call("POST", "/v1/topics", {"topic": "t"}).status == 200
        for _ in range(10):
            body = {"records": [record]}
            assert node.call("POST", "/v1/topics/t/records", body).status == 200
        readers = []
        for _ in range(STREAMS_MAX):
            reader = socket.socket()
            clients.enter_context(reader)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.bind(("127.0.0.2", 0))
            reader.connect(address_of(node))
            reader.sendall(b"GET /v1/topics/t/records HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            readers.append(reader)
        wait_until(lambda: len(with_a_page(readers)) >= STREAMS_MAX // 2)
        assert node.call("GET", "/v1/topics/t/records").raw.count(b"x" * 900_000) == 10
        assert node.get("/health/live") == {"status": "live"}
        assert len(with_a_page(readers)) == STREAMS_MAX // 2
        wait_until(lambda: node.metric(limited) > 0)
        wait_until(lambda: len(with_a_page(readers)) > STREAMS_MAX // 2)


def address_of(node: Served) -> tuple[str, int]:
    host, _, port = node.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def with_a_page(readers: list[socket.socket]) -> list[socket.socket]:
    """Those that were sent more than the first line of an answer, which they leave where it is."""
    found = []
    for reader in readers:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if len(reader.recv(2_000, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 1_000:
                found.append(reader)
    return found


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_requests_that_do_not_end_are_given_up_without_a_traceback(tmp_path: Path) -> None:
    with serving(tmp_path, body_timeout_s=600) as node, contextlib.ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(begun(node, 100)).sendall(b"{")
        assert node.stop() == 0
    assert not [line for line in node.log if "Traceback" in line or "Exception" in line]
