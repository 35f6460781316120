"""All connections of a node to others and from others, in one thread with its own event loop.

Its own, because threads that may wait (readers, upkeep, commands without an event loop) call other
nodes as well, and because a node answers others while its own event loop starts or stops.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from firnmq.cluster.peers.certificates import Certificates
from firnmq.cluster.peers.frames import MessageHeader, RequestHeader
from firnmq.cluster.peers.links import Call, Identity, PeerLink
from firnmq.cluster.peers.server import (
    MessageHandler,
    PeerMessage,
    PeerServer,
    RequestHandler,
)
from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.disk.loop_calls import call_from_worker, prepare_waker
from firnmq.errors import Closed, InvalidArgument, NodeUnavailable
from firnmq.eventlog import EventLogger

_log = EventLogger("peers")
T = TypeVar("T")

_STOP_S = 5.0

AddressOf = Callable[[int], tuple[str, int] | None]
"""Where a node listens for others; None while it is not registered."""


class PeerNetwork:
    """Safe with threads. Start it before the first call; close it when done."""

    def __init__(
        self,
        node: int,
        secret: bytes,
        address_of: AddressOf,
        certificates: Certificates | None = None,
    ) -> None:
        """`certificates`: connections are encrypted, and only nodes that show one are believed."""
        self._identity = Identity(node, secret, certificates)
        self._address_of = address_of
        self._request_ids = itertools.count(1)
        self._links: dict[int, PeerLink] = {}
        """Of the network's thread."""
        self._server: PeerServer | None = None
        self._on_message: MessageHandler = _refuse_message
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="firn-peers", daemon=True)
        self._thread.start()

    def listen(self, host: str, port: int, handler: RequestHandler) -> int:
        """Begins to serve other nodes; returns the port."""

        async def start() -> int:
            self._server = PeerServer(self._identity, handler, self._take_message)
            return await self._server.start(host, port)

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def call(
        self,
        node: int,
        operation: str,
        arguments: bytes,
        decode: Callable[[memoryview, memoryview], T],
        *,
        raw: Sequence[Buffer] = (),
        timeout_s: float,
        lane: str = "",
    ) -> Ticket[T]:
        """Asks another node; the ticket completes with what `decode` makes of the answer.

        Calls of one thread to one node are sent in their order. NodeUnavailable means that the
        request was not sent, PeerTimedOut that its outcome is unknown.
        """
        ticket: Ticket[T] = Ticket()
        header = RequestHeader(
            next(self._request_ids), operation, max(int(timeout_s * 1000), 1), len(arguments), lane
        )
        call = Call(header, (arguments, *raw), ticket, decode)
        if self._is_closed:
            call.fail(Closed("the node is stopping"))
        else:
            self._loop.call_soon_threadsafe(self._call, node, call)
        return ticket

    def on_message(self, handler: MessageHandler) -> None:
        """Who takes the messages of other nodes, in the network's thread; those that come before
        are refused."""
        self._on_message = handler

    def send(self, node: int, operation: str, arguments: bytes, raw: Sequence[Buffer] = ()) -> bool:
        """Tells another node something, without an answer; called in the network's thread. False
        if it is known that the message is dropped."""
        address = self._address_of(node)
        if address is None or self._is_closed:
            return False
        header = MessageHeader(0, operation, 0, len(arguments))
        return self._link(node).send(header, (arguments, *raw), address)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Of the network's thread."""
        return self._loop

    def soon(self, act: Callable[[], object]) -> None:
        """Calls something in the network's thread, in the order of calls and of notices that
        workers give to its loop; not once it is closed."""
        if not self._is_closed:
            call_from_worker(self._loop, _call, act)

    def forget(self, node: int) -> None:
        """Fails what waits for a node that is not registered any more."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._forget, node)

    def close(self) -> None:
        """Fails what waits. Closing twice is no error."""
        if self._is_closed:
            return
        self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        prepare_waker(self._loop)
        self._loop.run_forever()

    def _call(self, node: int, call: Call) -> None:
        address = self._address_of(node)
        if address is None:
            call.fail(NodeUnavailable(node, "it is not registered"))
            return
        self._link(node).call(call, address)

    def _link(self, node: int) -> PeerLink:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = PeerLink(node, self._identity)
        return link

    def _take_message(self, message: PeerMessage) -> None:
        self._on_message(message)

    def _forget(self, node: int) -> None:
        link = self._links.pop(node, None)
        if link is not None:
            link.close("it is not registered any more")

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
        for link in self._links.values():
            link.close("the node is stopping")
        tasks: set[asyncio.Task[Any]] = asyncio.all_tasks(self._loop)
        tasks -= {asyncio.current_task(self._loop)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _call(act: Callable[[], object]) -> None:
    act()


def _refuse_message(message: PeerMessage) -> None:
    raise InvalidArgument("operation", f"{message.operation!r} is not known to this node")
