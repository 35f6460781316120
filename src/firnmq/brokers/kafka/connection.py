"""One client's connection: bytes to frames, frames to requests in order, responses in order.

Received bytes go straight into the buffer that the frame will live in, so a produced batch is not
copied between the socket and the disk. Requests are begun in the order they came and answered in
that order. Only produce requests overlap: the next is begun once the one before is queued with its
shard, not once it is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Protocol, cast

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.protocol import Part
from firnmq.eventlog import EventLogger

_LENGTH_BYTES = 4
_SMALL_BUFFER_BYTES = 64 * 1024
_HEADER_BYTES_MIN = 8

_log = EventLogger("kafka")


class Dispatcher(Protocol):
    """What a connection hands its requests to."""

    async def begin(
        self, frame: bytearray, client: KafkaConnection
    ) -> Awaitable[list[Part] | None] | list[Part] | None:
        """Begins a request; returns its response, a wait for it, or None if it gets none.

        Raises only if the connection must be closed.
        """

    def connected(self, client: KafkaConnection) -> bool: ...

    def disconnected(self, client: KafkaConnection) -> None: ...


class KafkaConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection. Owned by the event loop."""

    def __init__(self, dispatcher: Dispatcher, config: KafkaConfig) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._transport: asyncio.Transport | None = None
        self._small = bytearray(_SMALL_BUFFER_BYTES)
        self._small_view = memoryview(self._small)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._frames: deque[bytearray] = deque()
        self._arrived = asyncio.Event()
        self._outgoing: deque[asyncio.Future[list[Part] | None]] = deque()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_paused = False
        self._task: asyncio.Task[None] | None = None
        self.peer = ""
        self.last_active_s = 0.0

    # Called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports behave like asyncio's but do not inherit from them.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        loop = asyncio.get_running_loop()
        self.last_active_s = loop.time()
        if not self._dispatcher.connected(self):
            transport.abort()
            return
        self._task = loop.create_task(self._serve())

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        for response in self._outgoing:
            response.cancel()
        self._dispatcher.disconnected(self)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        if self._end == len(self._small):
            self._compact()
        return self._small_view[self._end :]

    def buffer_updated(self, count: int) -> None:
        if self._large is not None:
            self._large_filled += count
            if self._large_filled == len(self._large):
                frame, self._large = self._large, None
                self._take(frame)
            return
        self._end += count
        self._split()

    # Frames -----------------------------------------------------------------------------------

    def _split(self) -> None:
        """Takes every whole frame out of the small buffer; begins a large one where one starts."""
        while self._end - self._start >= _LENGTH_BYTES and self._transport is not None:
            length = int.from_bytes(self._small[self._start : self._start + 4], "big", signed=True)
            if not _HEADER_BYTES_MIN <= length <= self._config.frame_bytes_max:
                self.close(f"a frame of {length} bytes is not allowed")
                return
            body = self._start + _LENGTH_BYTES
            if self._end - body >= length:
                self._start = body + length
                self._take(self._small[body : body + length])
                continue
            if length + _LENGTH_BYTES > len(self._small):
                self._large = bytearray(length)
                self._large_filled = self._end - body
                self._large[: self._large_filled] = self._small_view[body : self._end]
                self._start = self._end = 0
                return
            break
        if self._start == self._end:
            self._start = self._end = 0

    def _compact(self) -> None:
        size = self._end - self._start
        self._small[:size] = self._small[self._start : self._end]
        self._start, self._end = 0, size

    def _take(self, frame: bytearray) -> None:
        self._frames.append(frame)
        self._arrived.set()
        waiting = len(self._frames) + len(self._outgoing)
        if waiting >= self._config.requests_in_flight_max and not self._is_paused:
            assert self._transport is not None
            self._transport.pause_reading()
            self._is_paused = True

    # Requests -----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while self._transport is not None:
            if not self._frames:
                self._arrived.clear()
                await self._arrived.wait()
            self.last_active_s = loop.time()
            frame = self._frames.popleft()
            await self._can_write.wait()
            try:
                begun = await self._dispatcher.begin(frame, self)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # Supervisor: a defect costs this client its connection.
                _log.error("request_failed", peer=self.peer, error=repr(error))
                self.close(repr(error))
                return
            response: asyncio.Future[list[Part] | None]
            if begun is None or isinstance(begun, list):
                response = loop.create_future()
                response.set_result(begun)
            else:
                response = asyncio.ensure_future(begun)
                response.add_done_callback(self._flush)
            self._outgoing.append(response)
            if response.done():
                self._flush(response)
            self._resume_reading()

    async def wait_answered(self) -> None:
        """Returns when every request begun so far has been answered."""
        while self._outgoing:
            last = self._outgoing[-1]
            await asyncio.wait([last])
            self._flush(last)

    def _flush(self, _: asyncio.Future[list[Part] | None]) -> None:
        """Writes responses that are ready, from the oldest on."""
        while self._outgoing and self._outgoing[0].done():
            response = self._outgoing.popleft()
            if self._transport is None or response.cancelled():
                continue
            error = response.exception()
            if error is not None:
                _log.error("request_failed", peer=self.peer, error=repr(error))
                self.close(repr(error))
                return
            parts = response.result()
            if parts:
                self._transport.writelines(parts)  # type: ignore[arg-type]
        self._resume_reading()

    def _resume_reading(self) -> None:
        waiting = len(self._frames) + len(self._outgoing)
        if self._is_paused and waiting < self._config.requests_in_flight_max // 2:
            self._is_paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def close(self, reason: str) -> None:
        if self._transport is not None:
            _log.info("connection_closed", peer=self.peer, reason=reason)
            self._transport.close()
