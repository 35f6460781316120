"""Two nodes' networks over real sockets: answers, errors, order, strangers, silence."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from firnmq.cluster.peers import Certificates, PeerMessage, PeerNetwork, Request, Served
from firnmq.cluster.peers.server import HANDSHAKES_MAX, RequestHandler
from firnmq.disk import Ticket, run_blocking
from firnmq.errors import FirnError, InvalidArgument, NodeUnavailable, NotLeader, PeerTimedOut

_SECRET = b"s" * 32
_WAIT_S = 20.0


def _text(value: memoryview, raw: memoryview) -> str:
    return f"{bytes(value).decode()}/{bytes(raw).decode()}"


class Peers:
    """Node 1 asks, node 2 answers."""

    def __init__(
        self,
        handler: RequestHandler,
        *,
        secret: bytes = _SECRET,
        wanted: int = 2,
        tls: tuple[Certificates | None, Certificates | None] = (None, None),
    ) -> None:
        """`tls` are the certificates of the node that asks and of the one that answers."""
        self._stack = ExitStack()
        self.addresses: dict[int, tuple[str, int]] = {}
        self.asking = PeerNetwork(1, _SECRET, self.addresses.get, tls[0])
        self._stack.callback(self.asking.close)
        self.serving = PeerNetwork(2, secret, self.addresses.get, tls[1])
        self._stack.callback(self.serving.close)
        self.wanted = wanted
        port = self.serving.listen("127.0.0.1", 0, handler)
        self.addresses[wanted] = ("127.0.0.1", port)

    def ask(self, operation: str, *, timeout_s: float = _WAIT_S, lane: str = "") -> str:
        return run_blocking(self._ask(operation, timeout_s, lane))

    async def _ask(self, operation: str, timeout_s: float, lane: str) -> str:
        return await self.begin(operation, timeout_s=timeout_s, lane=lane)

    def begin(self, operation: str, *, timeout_s: float = _WAIT_S, lane: str = "") -> Ticket[str]:
        return self.asking.call(
            self.wanted, operation, b"args", _text, raw=(b"raw",), timeout_s=timeout_s, lane=lane
        )

    def close(self) -> None:
        self._stack.close()


async def _echo(request: Request) -> Any:
    async def answer() -> Served:
        if request.operation == "refuse":
            raise NotLeader("t_0", 2, 3)
        text = f"{request.node} {request.operation} {bytes(request.arguments).decode()}"
        return Served(text.encode(), (request.raw,))

    return answer()


@pytest.fixture
def made() -> Iterator[Callable[..., Peers]]:
    with ExitStack() as stack:

        def make(handler: RequestHandler = _echo, **options: Any) -> Peers:
            return stack.enter_context(closing(Peers(handler, **options)))

        yield make


def test_an_answer_comes_back(made: Callable[..., Peers]) -> None:
    assert made().ask("hello") == "1 hello args/raw"


def test_an_error_is_raised_where_it_was_asked(made: Callable[..., Peers]) -> None:
    with pytest.raises(NotLeader) as refused:
        made().ask("refuse")
    assert refused.value.leader == 3


def test_a_node_with_another_secret_is_not_believed(made: Callable[..., Peers]) -> None:
    with pytest.raises(NodeUnavailable):
        made(secret=b"x" * 32).ask("hello")


def test_an_address_that_another_node_has_now_is_not_used(made: Callable[..., Peers]) -> None:
    with pytest.raises(NodeUnavailable):
        made(wanted=9).ask("hello")


def test_a_stranger_gets_nothing(made: Callable[..., Peers]) -> None:
    peers = made()
    with socket.create_connection(peers.addresses[2], timeout=_WAIT_S) as stranger:
        stranger.sendall((10).to_bytes(4, "big") + (2**31).to_bytes(4, "big"))
        received = b""
        with suppress(ConnectionResetError):
            while part := stranger.recv(4096):
                received += part
    assert len(received) < 200  # The greeting at most.
    assert peers.ask("hello") == "1 hello args/raw"


@pytest.mark.parametrize("lengths", [(257, 0), (10, 1)])
def test_a_stranger_cannot_announce_more_than_a_handshake(
    made: Callable[..., Peers], lengths: tuple[int, int]
) -> None:
    peers = made()
    with socket.create_connection(peers.addresses[2], timeout=_WAIT_S) as stranger:
        stranger.sendall(b"".join(length.to_bytes(4, "big") for length in lengths))
        with suppress(ConnectionResetError):
            while stranger.recv(4096):
                continue


def test_many_strangers_do_not_keep_nodes_out(
    made: Callable[..., Peers],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("firnmq.cluster.peers.server.HANDSHAKE_S", 600.0)
    peers = made()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(peers.addresses[2], timeout=_WAIT_S))
            for _ in range(HANDSHAKES_MAX + 10)
        ]
        assert peers.ask("hello") == "1 hello args/raw"
        for stranger in opened[:10]:  # The oldest gave way.
            with suppress(ConnectionResetError):
                while stranger.recv(4096):
                    continue
        newest = opened[-1]
        assert newest.recv(4096)  # The greeting.
        newest.setblocking(False)
        with pytest.raises(BlockingIOError):
            newest.recv(4096)
    refused = [each for each in caplog.messages if "peer_refused" in each]
    assert 1 <= len(refused) < 10  # One line in ten seconds, whatever the strangers are.


def test_nothing_is_sent_to_a_node_that_is_not_there(made: Callable[..., Peers]) -> None:
    peers = made()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        peers.addresses[2] = taken.getsockname()
        with pytest.raises(NodeUnavailable):
            peers.ask("hello")
    del peers.addresses[2]
    with pytest.raises(NodeUnavailable, match="not registered"):
        peers.ask("hello")


def test_a_node_that_does_not_answer_leaves_the_outcome_unknown(
    made: Callable[..., Peers],
) -> None:
    async def silent(request: Request) -> Any:
        if request.operation == "hello":
            return await _echo(request)
        return asyncio.get_running_loop().create_future()

    peers = made(silent)
    with pytest.raises(PeerTimedOut):
        peers.ask("wait", timeout_s=0.05)
    assert peers.ask("hello") == "1 hello args/raw"


def test_what_waits_fails_when_the_connection_is_lost(made: Callable[..., Peers]) -> None:
    begun = threading.Event()

    async def silent(request: Request) -> Any:
        begun.set()
        return asyncio.get_running_loop().create_future()

    peers = made(silent)
    failures: list[FirnError] = []

    def ask() -> None:
        try:
            peers.ask("wait")
        except FirnError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(_WAIT_S)
    peers.serving.close()
    thread.join(_WAIT_S)
    assert [type(each) for each in failures] == [PeerTimedOut]


def test_requests_of_a_lane_begin_in_order_and_others_do_not_wait(
    made: Callable[..., Peers],
) -> None:
    began: list[str] = []
    other = asyncio.Event()

    async def slow_first(request: Request) -> Any:
        if request.operation == "first":
            await other.wait()
        elif request.operation == "other":
            other.set()
        began.append(request.operation)
        return await _echo(request)

    peers = made(slow_first)

    async def ask_all() -> None:
        tickets = [
            peers.begin("first", lane="a"),
            peers.begin("second", lane="a"),
            peers.begin("other", lane="b"),
        ]
        for ticket in tickets:
            await ticket

    run_blocking(ask_all())
    assert began == ["other", "first", "second"]


def test_many_requests_on_one_connection_are_all_answered(made: Callable[..., Peers]) -> None:
    peers = made()

    async def ask_all() -> list[str]:
        tickets = [peers.begin(f"n{number}") for number in range(3000)]
        return [await ticket for ticket in tickets]

    assert run_blocking(ask_all()) == [f"1 n{number} args/raw" for number in range(3000)]


def _tell(peers: Peers, operation: str, raw: bytes = b"") -> bool:
    """Sends a message in the network's thread, as its users do."""
    told: Future[bool] = Future()
    peers.asking.soon(
        lambda: told.set_result(peers.asking.send(peers.wanted, operation, b"args", (raw,)))
    )
    return told.result(_WAIT_S)


def _listening() -> tuple[Callable[[], str], Callable[[PeerMessage], None]]:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    def take(message: PeerMessage) -> None:
        if message.operation == "defect":
            raise ValueError(message.operation)
        if message.operation == "refused":
            raise InvalidArgument("operation", message.operation)
        heard.put(f"{message.node} {message.operation} {len(message.raw)}")

    return lambda: heard.get(timeout=_WAIT_S), take


def test_messages_arrive_in_order_also_those_sent_before_there_was_a_connection(
    made: Callable[..., Peers],
) -> None:
    peers = made()
    hear, take = _listening()
    peers.serving.on_message(take)
    assert all(_tell(peers, f"m{number}", b"x" * number) for number in range(50))
    assert [hear() for _ in range(50)] == [f"1 m{number} {number}" for number in range(50)]


def test_a_message_that_is_refused_harms_no_other(made: Callable[..., Peers]) -> None:
    peers = made()
    assert _tell(peers, "nobody listens yet")
    assert peers.ask("behind it") == "1 behind it args/raw"
    hear, take = _listening()
    peers.serving.on_message(take)
    for operation in ("refused", "defect", "good"):
        assert _tell(peers, operation)
    assert hear() == "1 good 0"
    assert peers.ask("hello") == "1 hello args/raw"


def test_messages_that_pile_up_are_dropped(made: Callable[..., Peers]) -> None:
    peers = made()
    stopped, go_on = threading.Event(), threading.Event()

    def stop(message: PeerMessage) -> None:
        stopped.set()
        go_on.wait(_WAIT_S)

    peers.serving.on_message(stop)
    assert _tell(peers, "first")
    assert stopped.wait(_WAIT_S)
    try:
        large = bytes(8 * 1024 * 1024)
        count = next(number for number in range(100) if not _tell(peers, "more", large))
        assert 32 * 1024 * 1024 <= count * len(large) < 100 * len(large)
    finally:
        go_on.set()


def test_a_node_without_an_address_is_told_nothing(made: Callable[..., Peers]) -> None:
    peers = made()
    peers.addresses.clear()
    assert not _tell(peers, "hello")
