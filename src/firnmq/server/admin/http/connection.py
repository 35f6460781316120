"""A connection of the HTTP listener: uvicorn's, with time-outs and limits."""

from __future__ import annotations

import asyncio
import enum
import socket
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from firnmq.brokers.net.client_progress import DrainWatch
from firnmq.config import AdminConfig
from firnmq.server.admin.http.guard import JSON
from firnmq.server.admin.http.limits import ConnectionLimits
from firnmq.server.admin.http.places import SharedPlaces
from firnmq.server.documents import Failure

KEEP_ALIVE_S = 60
_CLOSE_S = 5
"""Seconds to send the remaining output when a connection is closed."""
_SEND_TIMEOUT_S = 60.0
"""Seconds that a client has to read output beyond the socket's buffers."""
_STREAM_TIMEOUT_S = 3600.0
"""The same for a client that reads records: it holds one page of them, and a user may look at what
is shown before going on."""
_STREAM_STALL_S = 10.0
"""Seconds without progress after which such a client is disconnected if others wait for a page."""
_SOCKET_BYTES = 256 * 1024
"""Output that the system holds for a client; it would take megabytes of what a client leaves."""
STREAMS_MAX = 32
"""Pages of records that were made and not taken by their clients, a megabyte each or one batch."""
_STREAMS = "/records"
_HEALTH = "/health/"


class Phase(enum.Enum):
    """The phase of a connection."""

    HEADER = "header"
    BODY = "body"
    ANSWER = "answer"
    PAUSE = "pause"
    """Waits for the first byte of the next request."""


class AdminProtocol(H11Protocol):
    """Implements `limits.Connection`."""

    def __init__(
        self, limits: ConnectionLimits, admin: AdminConfig, streams: SharedPlaces, **uvicorn: Any
    ) -> None:
        """`streams`: the places of pages of records."""
        super().__init__(**uvicorn)
        self._limits = limits
        self._streams = streams
        self._drain = DrainWatch()
        self._phase = (Phase.HEADER, self.cycle)
        self._timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._timeouts_s: dict[Phase, float | None] = {
            Phase.HEADER: admin.header_timeout_s,
            Phase.BODY: admin.body_timeout_s,
            Phase.ANSWER: None,
            Phase.PAUSE: KEEP_ALIVE_S + _CLOSE_S,  # uvicorn closes it; this is for the rest.
        }
        self._requests_max = admin.connections_max
        self._is_spare = False
        self._is_streaming = False
        self._answers = self.app
        self.app = self._ended
        self.address = ""
        self.waits_since_s = 0.0
        self.answered_count = 0

    # Called by the event loop and by uvicorn ------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        sending = transport.get_extra_info("socket")
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.waits_since_s = self.loop.time()
        self._is_spare = not self._limits.connected(self)
        self._set_timer(Phase.HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.disconnected(self)
        for timer in (self._timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_phase()

    def on_response_complete(self) -> None:
        self.answered_count += 1
        self.waits_since_s = self.loop.time()
        super().on_response_complete()
        self._note_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        now_s = self.loop.time()
        if self._is_streaming:
            self._drain.begin(self.transport.get_write_buffer_size(), now_s)
            self._watch_stream(now_s + _STREAM_TIMEOUT_S)
        else:
            self._send_timer = self.loop.call_later(_SEND_TIMEOUT_S, self._send_timed_out)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    # Called by the limits -------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        return self.transport.is_closing() or self._phase[0] in (Phase.HEADER, Phase.PAUSE)

    def abort(self) -> None:
        self.transport.abort()

    # ----------------------------------------------------------------------------------------

    async def _ended(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request. When the listener stops, uvicorn cancels requests that take too long:
        their connections are closed, and that is no error."""
        cycle = self.cycle
        try:
            await self._limited(scope, receive, send)
        except asyncio.CancelledError:
            cycle.disconnected = True
            self.transport.abort()

    async def _limited(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request, or refuses it above the limit. Health is always answered."""
        is_full = self._is_spare or len(self.tasks) > self._requests_max
        self._is_streaming = scope["method"] == "GET" and scope["path"].endswith(_STREAMS)
        if not is_full:
            await self._answers(scope, receive, self._drained(send) if self._is_streaming else send)
            return

        async def send_last(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        if scope["path"].startswith(_HEALTH):
            await self._answers(scope, receive, send_last)
            return
        text = "too many requests are under way; try again in a moment"
        body = msgspec.json.encode(Failure(error="Refused", message=text))
        headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))]
        await send_last({"type": "http.response.start", "status": 503, "headers": headers})
        await send_last({"type": "http.response.body", "body": body})

    def _drained(self, send: Any) -> Any:
        """Sends, and returns once the client has taken it: the next page is made no earlier."""

        async def send_all(message: Any) -> None:
            await send(message)
            if self.flow.write_paused:
                await self.flow.drain()

        return send_all

    def _note_phase(self) -> None:
        """Starts the time-out of the present phase, if the phase has just begun."""
        if self.conn.their_state is h11.SEND_BODY:
            phase = Phase.BODY
        elif self.conn.their_state is not h11.IDLE:
            phase = Phase.ANSWER
        elif self.answered_count == 0 or self.conn.trailing_data[0]:
            phase = Phase.HEADER
        else:
            phase = Phase.PAUSE
        if (phase, self.cycle) != self._phase:
            self._phase = (phase, self.cycle)
            self._set_timer(phase)

    def _set_timer(self, phase: Phase) -> None:
        if self._timer is not None:
            self._timer.cancel()
        timeout_s = self._timeouts_s[phase]
        self._timer = None
        if timeout_s is not None:
            self._timer = self.loop.call_later(timeout_s, self._timed_out, phase)

    def _timed_out(self, phase: Phase) -> None:
        if self.transport.is_closing():
            self.transport.abort()
            return
        self._limits.timed_out(self, phase.value)
        has_begun = phase is Phase.BODY or bool(self.conn.trailing_data[0])
        if has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send_timeout_answer(phase)
        if self.cycle is not None:
            # Tells the endpoint that the client has disconnected.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._timer = self.loop.call_later(_CLOSE_S, self.transport.abort)
        self.transport.close()

    def _send_timeout_answer(self, phase: Phase) -> None:
        text = f"the {phase.value} did not come within {self._timeouts_s[phase]:g} s"
        body = msgspec.json.encode(Failure(error="Refused", message=text))
        headers = [
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        start = h11.Response(status_code=408, headers=headers, reason=STATUS_PHRASES[408])
        for event in (start, h11.Data(data=body), h11.EndOfMessage()):
            sent = self.conn.send(event)
            if sent:
                self.transport.write(sent)

    def _watch_stream(self, ends_s: float) -> None:
        now_s = self.loop.time()
        is_stuck = self._drain.is_stuck(self.transport.get_write_buffer_size(), now_s)
        if now_s >= ends_s or (is_stuck and self._streams.has_waiting):
            self._send_timed_out()
        else:
            self._send_timer = self.loop.call_later(_STREAM_STALL_S, self._watch_stream, ends_s)

    def _send_timed_out(self) -> None:
        self._limits.timed_out(self, "send")
        self.transport.abort()
