"""What other nodes ask of this one: requests in, answers out, at most so many at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from firnmq.cluster.peers.failures import encode_error
from firnmq.cluster.peers.frames import (
    BODY_BYTES_MAX,
    AnswerHeader,
    Frame,
    FrameError,
    FrameParser,
    RequestHeader,
    decode_header,
    frame_parts,
)
from firnmq.cluster.peers.handshake import (
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_S,
    VERSION,
    Greeting,
    Introduction,
    new_nonce,
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


class PeerServer:
    """Owned by the event loop of the network thread."""

    def __init__(self, identity: Identity, handler: RequestHandler) -> None:
        self.identity = identity
        self.handler = handler
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()

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

    def _new_wire(self) -> Wire:
        return _Connection(self).wire


class _Connection:
    """One node that asks."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        parser = FrameParser(body_bytes_max=HANDSHAKE_BYTES_MAX)
        self.wire = Wire(parser, self._made, self._received, self._lost)
        self._greeting = Greeting(VERSION, new_nonce())
        self._node: int | None = None
        """Known once the handshake is over."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._request_bytes = 0
        self._lanes: dict[str, asyncio.Event] = {}
        """The last request of each lane that has not begun."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False

    def close(self, reason: str) -> None:
        self.wire.abort(reason)

    def _made(self, wire: Wire) -> None:
        if len(self._server.connections) >= CONNECTIONS_MAX:
            wire.abort("too many connections")
            return
        self._server.connections.add(self)
        self._timer = self._loop.call_later(HANDSHAKE_S, wire.abort, "no handshake in time")
        wire.send(frame_parts(self._greeting, ()))

    def _lost(self, reason: str) -> None:
        """Requests that have begun are carried out; their answers go nowhere."""
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._node is None:
            _log.warning("peer_refused", address=self.wire.peer, reason=reason)

    def _received(self, frame: Frame) -> None:
        if self._node is None:
            self._shake_hands(frame)
            return
        header = decode_header(frame, RequestHeader)
        if header.arguments_bytes > len(frame.body):
            raise FrameError("a request is shorter than its arguments")
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

    def _shake_hands(self, frame: Frame) -> None:
        introduction = decode_header(frame, Introduction)
        identity = self._server.identity
        answer = welcome(identity.secret, identity.node, self._greeting, introduction)
        self.wire.send(frame_parts(answer, ()))
        self.wire.parser.body_bytes_max = BODY_BYTES_MAX
        self._node = introduction.node
        if self._timer is not None:
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
