"""The connection from this node to another one: calls go out pipelined, answers come in any order.

A link connects when it is first used and again after it was lost. What was called while it connects
waits in order. Everything is bounded: calls in number and bytes, each in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from firnmq.cluster.peers.certificates import Certificates
from firnmq.cluster.peers.failures import decode_error
from firnmq.cluster.peers.frames import (
    AnswerHeader,
    Frame,
    FrameError,
    MessageHeader,
    RequestHeader,
    decode_header,
    frame_parts,
)
from firnmq.cluster.peers.handshake import (
    HANDSHAKE_S,
    Greeting,
    Introduction,
    Welcome,
    check_welcome,
    introduce,
    new_parser,
)
from firnmq.cluster.peers.wires import Wire
from firnmq.disk import Settlement, Ticket
from firnmq.disk.files import Buffer
from firnmq.errors import FirnError, NodeUnavailable, PeerTimedOut
from firnmq.eventlog import EventLogger

_log = EventLogger("peers")

CALLS_MAX = 10_000
CALL_BYTES_MAX = 256 * 1024 * 1024
"""Of one link: calls that have no answer yet. Beyond that a call fails at once."""
CONNECT_S = 2.0
RETRY_S = 0.2
"""A link that could not connect fails calls at once for this long."""
MESSAGES_MAX = 256
"""Messages that wait for a connection; a further one is dropped."""
MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Of what waits for the other node to read it; beyond it messages are dropped."""

Decode = Callable[[memoryview, memoryview], Any]
"""Makes the result of an answer's value and raw bytes."""


class Identity(NamedTuple):
    """What a link proves to the other side."""

    node: int
    secret: bytes
    certificates: Certificates | None = None
    """None: connections are not encrypted."""


class Call:
    """One request and the ticket that waits for its answer."""

    __slots__ = (
        "body",
        "decode",
        "header",
        "is_sent",
        "operation",
        "size_bytes",
        "ticket",
        "timer",
    )

    def __init__(
        self,
        header: RequestHeader,
        body: Sequence[Buffer],
        ticket: Ticket[Any],
        decode: Decode,
    ) -> None:
        self.header = header
        self.body = body
        self.size_bytes = sum(map(len, body))
        self.ticket = ticket
        self.decode = decode
        self.is_sent = False
        self.timer: asyncio.TimerHandle | None = None

    def resolve(self, value: object) -> None:
        self._end(lambda settlement: settlement.resolve(self.ticket, value))

    def fail(self, error: BaseException) -> None:
        self._end(lambda settlement: settlement.fail(self.ticket, error))

    def _end(self, settle: Callable[[Settlement], None]) -> None:
        if self.timer is not None:
            self.timer.cancel()
        settlement = Settlement()
        settle(settlement)
        settlement.deliver()


class PeerLink:
    """Owned by the event loop of the network thread."""

    def __init__(self, node: int, identity: Identity) -> None:
        self.node = node
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        """The present connection, made or being made."""
        self._is_ready = False
        self._settled = asyncio.Event()
        """Set once a handshake has ended, well or not."""
        self._greeting: Greeting | None = None
        self._introduction: Introduction | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failed_until_s = 0.0
        self._failure = ""
        self._calls: dict[int, Call] = {}
        self._unsent: deque[Call] = deque()
        self._messages: deque[tuple[MessageHeader, Sequence[Buffer]]] = deque()
        """Those that wait for the connection."""
        self._message_bytes = 0
        self._call_bytes = 0

    @property
    def call_count(self) -> int:
        return len(self._calls)

    def call(self, call: Call, address: tuple[str, int]) -> None:
        """Sends a request, in the order of calls. Its ticket gets the answer, or NodeUnavailable if
        it was not sent, or PeerTimedOut if what became of it is unknown."""
        if len(self._calls) >= CALLS_MAX or self._call_bytes + call.size_bytes > CALL_BYTES_MAX:
            call.fail(NodeUnavailable(self.node, "too many requests wait for it"))
            return
        if self._wire is None and self._loop.time() < self._failed_until_s:
            call.fail(NodeUnavailable(self.node, self._failure))
            return
        self._calls[call.header.request_id] = call
        self._call_bytes += call.size_bytes
        call.timer = self._loop.call_later(
            call.header.time_left_ms / 1000, self._expire, call.header.request_id
        )
        self._unsent.append(call)
        if self._is_ready:
            self._send_unsent()
        elif self._connecting is None:
            self._connecting = self._loop.create_task(self._connect(address))

    def send(self, header: MessageHeader, body: Sequence[Buffer], address: tuple[str, int]) -> bool:
        """Sends a message, which has no answer; False if it was dropped, as it also is when the
        connection is lost."""
        if self._is_ready:
            assert self._wire is not None
            if self._wire.unsent_bytes > MESSAGE_BYTES_MAX:
                return False
            self._wire.send(frame_parts(header, body))
            return True
        if self._wire is None and self._loop.time() < self._failed_until_s:
            return False
        size = sum(map(len, body))
        if len(self._messages) >= MESSAGES_MAX or self._message_bytes + size > MESSAGE_BYTES_MAX:
            return False
        self._messages.append((header, body))
        self._message_bytes += size
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect(address))
        return True

    def close(self, reason: str) -> None:
        """Fails every call and forgets the connection; the next call connects."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort(reason)
        self._fail_all(reason)

    # Connecting -------------------------------------------------------------------------------

    async def _connect(self, address: tuple[str, int]) -> None:
        where = f"{address[0]}:{address[1]}"
        reason = f"no connection to {where} within {CONNECT_S:g} s"
        self._is_ready = False
        self._greeting = self._introduction = None
        self._settled.clear()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(self._new_wire, *address)
            reason = f"no handshake with {where} within {HANDSHAKE_S:g} s; {self._tls_hint}"
            async with asyncio.timeout(HANDSHAKE_S):
                await self._settled.wait()
        except TimeoutError:
            self._fail(reason)
        except OSError as error:
            self._fail(f"{where}: {error.strerror or error}")
        finally:
            self._connecting = None

    def _new_wire(self) -> Wire:
        certificates = self._identity.certificates
        tls = None if certificates is None else certificates.connecting()
        self._wire = Wire(new_parser(), _wait_for_greeting, self._received, self._lost, tls)
        return self._wire

    @property
    def _tls_hint(self) -> str:
        if self._identity.certificates is None:
            return "it may expect TLS, this node has no certificate ([cluster] certificate_file)"
        return "it may be stopped"

    def _received(self, frame: Frame) -> None:
        if self._is_ready:
            self._answered(frame)
        else:
            self._shake_hands(frame)

    def _shake_hands(self, frame: Frame) -> None:
        assert self._wire is not None
        secret, certificates = self._identity.secret, self._wire.certificates
        if self._greeting is None:
            self._greeting = decode_header(frame, Greeting)
            self._introduction = introduce(
                secret, self._identity.node, self.node, self._greeting, certificates
            )
            self._wire.send(frame_parts(self._introduction, ()))
            return
        assert self._introduction is not None
        answer = decode_header(frame, Welcome)
        check_welcome(secret, self._greeting, self._introduction, answer, certificates)
        self._wire.parser.trust()
        self._is_ready = True
        self._failed_until_s = 0.0
        _log.info("peer_connected", node=self.node, address=self._wire.peer)
        self._settled.set()
        self._send_unsent()

    # Calls ------------------------------------------------------------------------------------

    def _send_unsent(self) -> None:
        assert self._wire is not None
        while self._messages:
            self._wire.send(frame_parts(*self._messages.popleft()))
        self._message_bytes = 0
        while self._unsent:
            call = self._unsent.popleft()
            if call.header.request_id not in self._calls:
                continue  # Its time was over.
            call.is_sent = True
            self._wire.send(frame_parts(call.header, call.body))
            call.body = ()

    def _answered(self, frame: Frame) -> None:
        header = decode_header(frame, AnswerHeader)
        call = self._forget(header.request_id)
        if call is None:
            return  # Its time was over.
        if header.value_bytes > len(frame.body):
            raise FrameError("an answer is shorter than its value")
        value, raw = frame.body[: header.value_bytes], frame.body[header.value_bytes :]
        if header.is_error:
            call.fail(decode_error(value))
            return
        try:
            call.resolve(call.decode(value, raw))
        except (FirnError, msgspec.MsgspecError) as error:
            call.fail(NodeUnavailable(self.node, f"it sent a strange answer: {error}"))

    def _expire(self, request_id: int) -> None:
        call = self._forget(request_id)
        if call is None:
            return
        if call.is_sent:
            call.fail(PeerTimedOut(self.node, "it did not answer in time"))
        else:
            call.fail(NodeUnavailable(self.node, "there was no connection to it in time"))

    def _forget(self, request_id: int) -> Call | None:
        call = self._calls.pop(request_id, None)
        if call is not None:
            self._call_bytes -= call.size_bytes
        return call

    def _lost(self, wire: Wire, reason: str) -> None:
        if self._wire is not wire:
            return  # This side has given it up.
        self._wire = None
        if self._is_ready:
            _log.info("peer_lost", node=self.node, reason=reason)
        self._fail(reason)
        self._settled.set()

    def _fail(self, reason: str) -> None:
        self._failed_until_s = self._loop.time() + RETRY_S
        self._failure = reason
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort(reason)
        self._fail_all(reason)

    def _fail_all(self, reason: str) -> None:
        self._is_ready = False
        self._unsent.clear()
        self._messages.clear()
        self._message_bytes = 0
        calls, self._calls = self._calls, {}
        self._call_bytes = 0
        for call in calls.values():
            if call.is_sent:
                call.fail(PeerTimedOut(self.node, f"the connection to it was lost: {reason}"))
            else:
                call.fail(NodeUnavailable(self.node, reason))


def _wait_for_greeting(wire: Wire) -> None:
    """The accepting side begins."""
