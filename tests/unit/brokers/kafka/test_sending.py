"""Responses with parts of files, through real sockets."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from firnmq.brokers.kafka.protocol import Part
from firnmq.brokers.net.sending import buffers_of, send_small, takes_ranges
from firnmq.disk import FileCache

CONTENT = bytes(range(256)) * 4096 * 8
"""8 MiB: more than a socket takes at once."""


class Sending(asyncio.Protocol):
    """Sends what it is given once it is connected."""

    def __init__(self, make: Callable[[], list[Part]]) -> None:
        self._make = make
        self.may_range = False
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.may_range = takes_ranges(transport)
        # However much the system would take at once, most is still to be sent.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        self.transport.writelines(buffers_of(self._make()))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


async def sent(make: Callable[[], list[Part]], receive: Callable[[socket.socket], bytes]) -> bytes:
    """What a client receives that reads in a thread of its own."""
    made: list[Sending] = []

    def connected() -> Sending:
        made.append(Sending(make))
        return made[-1]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(connected, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname(), timeout=60)
    with client:
        received = await loop.run_in_executor(None, receive, client)
    await made[0].lost
    assert made[0].may_range
    server.close()
    await server.wait_closed()
    return received


def run(make: Callable[[], list[Part]], receive: Callable[[socket.socket], bytes]) -> bytes:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(sent(make, receive))


def exactly(size: int) -> Callable[[socket.socket], bytes]:
    def receive(client: socket.socket) -> bytes:
        data = bytearray()
        while len(data) < size and (some := client.recv(65_536)):
            data += some
        return bytes(data)

    return receive


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    return str(path)


def test_parts_arrive_in_order_and_whole(path: str) -> None:
    cache = FileCache()

    def parts() -> list[Part]:
        return [
            b"head",
            cache.range_at(path, 5, 6_000_000),
            bytearray(b"between"),
            cache.range_at(path, 123_456, 1),
            memoryview(b"end"),
        ]

    wanted = b"head" + CONTENT[5:6_000_005] + b"between" + CONTENT[123_456:123_457] + b"end"
    assert run(parts, exactly(len(wanted))) == wanted


def test_a_file_that_is_removed_meanwhile_is_sent(path: str) -> None:
    cache = FileCache()
    asked = threading.Event()

    def parts() -> list[Part]:
        part = cache.range_at(path, 0, len(CONTENT))
        cache.remove(path)
        asked.set()
        return [part]

    def receive(client: socket.socket) -> bytes:
        asked.wait(60)
        return exactly(len(CONTENT))(client)

    assert run(parts, receive) == CONTENT


def test_a_file_that_is_cut_meanwhile_costs_the_client_its_connection_alone(path: str) -> None:
    cache = FileCache()

    def receive(client: socket.socket) -> bytes:
        data = bytearray(client.recv(1))  # It is being sent.
        cache.truncate(path, 4096)
        try:
            while some := client.recv(65_536):
                data += some
        except ConnectionError:
            pass
        return bytes(data)

    received = run(lambda: [cache.range_at(path, 0, len(CONTENT))], receive)
    assert len(received) < len(CONTENT)
    assert CONTENT.startswith(received)


async def test_transports_that_look_into_buffers_get_no_ranges() -> None:
    """asyncio's own loop, which this test runs in."""

    class Asked(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            answers.append(takes_ranges(transport))
            transport.close()

    answers: list[bool] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Asked, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    assert answers == [False]
    server.close()
    await server.wait_closed()


def test_a_response_without_ranges_is_passed_on_as_it_is() -> None:
    parts: list[Part] = [b"a", b"b"]
    assert buffers_of(parts) is parts


@pytest.mark.parametrize("at_once", [False, True])
def test_small_answers_keep_their_order_whatever_the_socket_takes(at_once: bool) -> None:
    """The client reads nothing until all was sent, so that the socket is full on the way."""
    frames = [b"%06d" % number * 500 for number in range(3_000)]

    class Answering(asyncio.Protocol):
        def __init__(self) -> None:
            self.sent = asyncio.Event()
            self.waiting_bytes = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            stream: asyncio.Transport = transport  # type: ignore[assignment]
            descriptor = stream.get_extra_info("socket").fileno() if at_once else -1
            for frame in frames:
                send_small(stream, descriptor, frame)
            self.waiting_bytes = stream.get_write_buffer_size()
            stream.close()
            send_small(stream, descriptor, b"after the end")
            send_small(None, descriptor, b"after the end")
            self.sent.set()

    async def main() -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        answering = Answering()
        server = await loop.create_server(lambda: answering, "127.0.0.1", 0)
        try:
            with socket.socket() as client:
                client.settimeout(60)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                client.connect(server.sockets[0].getsockname())
                await answering.sent.wait()

                def receive() -> bytes:
                    return b"".join(iter(lambda: client.recv(1 << 20), b""))

                return answering.waiting_bytes, await loop.run_in_executor(None, receive)
        finally:
            server.close()
            await server.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        waiting_bytes, received = runner.run(main())
    assert received == b"".join(frames)
    assert waiting_bytes, "the socket took everything"
