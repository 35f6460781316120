"""What other nodes ask of this one: requests in, answers out, at most so many at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from firnmq.cluster.peers.failures import encode_error
from firnmq.cluster.peers.frames import (
    AnswerHeader,
    Frame,
    FrameError,
    RequestHeader,
    decode_header,
    frame_parts,
)
from firnmq.cluster.peers.handshake import (
    HANDSHAKE_S,
    VERSION,
    Greeting,
    Introduction,
    new_nonce,
    new_parser,
    welcome,
)
from firnmq.cluster.peers.links import Identity
from firnmq.cluster.peers.wires import Wire
from firnmq.disk.files import Buffer
from firnmq.errors import CannotListen, FirnError, StorageFailed
from firnmq.eventlog import EventLogger

_log = EventLogger("peers")

REQUESTS_MAX = 1_000
REQUEST_BYTES_MAX = 256 * 1024 * 1024
"""Of one connection: requests that have no answer yet. Beyond that the socket is not read."""
CONNECTIONS_MAX = 1_000
"""Of nodes, those included that have just begun."""
HANDSHAKES_MAX = 64
"""Connections that have not shown yet that they are a node's. One more ends the oldest of them."""
_REFUSALS_S = 10.0
"""Refused connections have one line in the log in so much time."""


class Served(NamedTuple):
    """An answer: a value, and raw bytes after it."""

    value: bytes
    raw: Sequence[Buffer] = ()


class Request(NamedTuple):
    """What another node asks."""

    node: int
    """Which node asks."""
    operation: str
    arguments: memoryview
    raw: memoryview
    deadline_s: float
    """When it stops waiting, by `time.monotonic`, which is also the event loop's clock."""


RequestHandler = Callable[[Request], Awaitable[Awaitable[Served]]]
"""Begins a request and returns what waits for its answer. Requests of one lane begin one after the
other."""


class PeerMessage(NamedTuple):
    """What another node tells; it waits for no answer."""

    node: int
    """Which node tells it."""
    operation: str
    arguments: memoryview
    raw: memoryview


MessageHandler = Callable[[PeerMessage], None]
"""Takes a message in the network's thread. It must not wait, since nothing else goes on there."""


class PeerServer:
    """Owned by the event loop of the network thread."""

    def __init__(
        self, identity: Identity, handler: RequestHandler, on_message: MessageHandler
    ) -> None:
        self.identity = identity
        self.handler = handler
        self.on_message = on_message
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()
        self.handshakes: dict[_Connection, None] = {}
        """Those of them that are not known to be a node's, the oldest first."""
        self._refused_count = 0
        """Without a line in the log."""
        self._logs_from_s = 0.0

    async def start(self, host: str, port: int) -> int:
        """Opens the listener and returns its port."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._new_wire, host, port)
        except OSError as error:
            raise CannotListen("cluster", host, port, error) from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close("the node is stopping")

    def refused(self, address: str, reason: str) -> None:
        """Logs a refused connection, unless others have filled the log just now."""
        now = asyncio.get_running_loop().time()
        if now < self._logs_from_s:
            self._refused_count += 1
            return
        count, self._refused_count = self._refused_count, 0
        self._logs_from_s = now + _REFUSALS_S
        _log.warning("peer_refused", address=address, reason=reason, others_before=count)

    def _new_wire(self) -> Wire:
        while len(self.handshakes) >= HANDSHAKES_MAX:
            oldest = next(iter(self.handshakes))
            del self.handshakes[oldest]
            oldest.close("newer connections wait for a handshake")
        return _Connection(self).wire


class _Connection:
    """One node that asks."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        certificates = server.identity.certificates
        tls = None if certificates is None else certificates.accepting()
        self.wire = Wire(new_parser(), self._made, self._received, self._lost, tls)
        self._greeting = Greeting(VERSION, new_nonce())
        self._node: int | None = None
        """Known once the handshake is over."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._request_bytes = 0
        self._lanes: dict[str, asyncio.Event] = {}
        """The last request of each lane that has not begun."""
        self._is_paused = False
        server.connections.add(self)
        server.handshakes[self] = None
        self._timer = self._loop.call_later(HANDSHAKE_S, self.close, "no handshake in time")

    def close(self, reason: str) -> None:
        self.wire.abort(reason)

    def _made(self, wire: Wire) -> None:
        if len(self._server.connections) > CONNECTIONS_MAX:
            wire.abort("too many connections")
            return
        wire.send(frame_parts(self._greeting, ()))

    def _lost(self, wire: Wire, reason: str) -> None:
        """Requests that have begun are carried out; their answers go nowhere."""
        self._server.connections.discard(self)
        self._server.handshakes.pop(self, None)
        self._timer.cancel()
        if self._node is None:
            self._server.refused(wire.peer, reason)

    def _received(self, frame: Frame) -> None:
        if self._node is None:
            self._shake_hands(frame)
            return
        header = decode_header(frame, RequestHeader)
        if header.arguments_bytes > len(frame.body):
            raise FrameError("a request is shorter than its arguments")
        if not header.request_id:
            self._take_message(header, frame.body)
            return
        size = len(frame.body)
        self._request_bytes += size
        request = Request(
            self._node,
            header.operation,
            frame.body[: header.arguments_bytes],
            frame.body[header.arguments_bytes :],
            self._loop.time() + header.time_left_ms / 1000,
        )
        before, begun = None, None
        if header.lane:
            before, begun = self._lanes.get(header.lane), asyncio.Event()
            self._lanes[header.lane] = begun
        task = self._loop.create_task(self._serve(header, request, before, begun))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, size=size))
        if len(self._tasks) >= REQUESTS_MAX or self._request_bytes >= REQUEST_BYTES_MAX:
            self._is_paused = True
            self.wire.pause_reading()

    def _take_message(self, header: RequestHeader, body: memoryview) -> None:
        assert self._node is not None
        split = header.arguments_bytes
        message = PeerMessage(self._node, header.operation, body[:split], body[split:])
        try:
            self._server.on_message(message)
        except FirnError as error:
            _log.warning("peer_message_refused", operation=message.operation, error=str(error))
        except Exception as defect:  # Supervisor: a defect costs this message alone.
            _log.error("peer_message_failed", operation=message.operation, error=repr(defect))

    def _shake_hands(self, frame: Frame) -> None:
        introduction = decode_header(frame, Introduction)
        identity = self._server.identity
        answer = welcome(
            identity.secret,
            identity.node,
            self._greeting,
            introduction,
            self.wire.certificates,
        )
        self.wire.send(frame_parts(answer, ()))
        self.wire.parser.trust()
        self._node = introduction.node
        self._server.handshakes.pop(self, None)
        self._timer.cancel()

    async def _serve(
        self,
        header: RequestHeader,
        request: Request,
        before: asyncio.Event | None,
        begun: asyncio.Event | None,
    ) -> None:
        try:
            try:
                if before is not None:
                    await before.wait()
                answer = await self._server.handler(request)
            finally:
                if begun is not None:
                    begun.set()
                    if self._lanes.get(header.lane) is begun:
                        del self._lanes[header.lane]
            served, is_error = await answer, False
        except FirnError as error:
            served, is_error = Served(encode_error(error)), True
        except Exception as defect:  # Supervisor: a defect costs this request alone.
            _log.error("peer_request_failed", operation=request.operation, error=repr(defect))
            failure = StorageFailed(f"node {self._server.identity.node}", defect)
            served, is_error = Served(encode_error(failure)), True
        await self._answer(header.request_id, served, is_error=is_error)

    def _ended(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._request_bytes -= size
        if (
            self._is_paused
            and len(self._tasks) <= REQUESTS_MAX // 2
            and self._request_bytes <= REQUEST_BYTES_MAX // 2
        ):
            self._is_paused = False
            self.wire.resume_reading()

    async def _answer(self, request_id: int, served: Served, *, is_error: bool) -> None:
        while self.wire.is_open and not self.wire.has_room:
            await self.wire.wait_room()
        try:
            parts = frame_parts(
                AnswerHeader(request_id, is_error, len(served.value)), (served.value, *served.raw)
            )
        except FirnError as error:
            value = encode_error(error)
            parts = frame_parts(AnswerHeader(request_id, True, len(value)), (value,))
        self.wire.send(parts)
