"""One client's connection: bytes to frames, frames to requests in order, responses in order.

Received bytes go straight into the buffer that the frame will live in, so a produced batch is not
copied between the socket and the disk. Requests are begun in the order they came and answered in
that order. Only produce requests overlap: the next is begun once the one before is queued with its
shard, not once it is durable.

A client that is gone leaves its requests behind: those it sent are carried out, because nothing
tells it otherwise where it wants no answer, and half a topic would be in everybody's way. Only a
request that merely waits is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Protocol, cast

from firnmq.brokers.kafka.budget import ByteBudget
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.protocol import Part
from firnmq.brokers.kafka.security import SaslSession
from firnmq.brokers.kafka.sending import buffers_of, takes_ranges
from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger

_LENGTH_BYTES = 4
_IDLE_BUFFER_BYTES = 4 * 1024
"""What every connection has; most requests fit."""
_SMALL_BUFFER_BYTES = 64 * 1024
"""What a connection has that once filled the first one. Larger frames get a buffer of their own."""
_LARGE_STEP_BYTES = 1024 * 1024
"""Room that a large frame is given at first, then doubled as it fills: a length that is merely
claimed takes no memory."""
_STALL_S = 10.0
"""Seconds in which nothing came of a large frame, after which others may have its room."""
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

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: KafkaConfig,
        *,
        budget: ByteBudget,
        statistics: BrokerStatistics,
    ) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._budget = budget
        self._statistics = statistics
        self._transport: asyncio.Transport | None = None
        self._small = bytearray(_IDLE_BUFFER_BYTES)
        self._small_view = memoryview(self._small)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_length = 0
        """Bytes that the large frame will have, all counted by the budget."""
        self._large_filled = 0
        self._large_since_s = 0.0
        self._frames: deque[bytearray] = deque()
        self._arrived = asyncio.Event()
        self._outgoing: deque[asyncio.Future[list[Part] | None]] = deque()
        self._outgoing_sizes: deque[int] = deque()
        """Bytes of the requests that the responses in `_outgoing` answer."""
        self._held_bytes = 0
        """Bytes of whole requests that have not been answered."""
        self._waits_for_room = False
        """A large frame has begun and the budget has no room for it yet."""
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_paused = False
        self._is_working = False
        self._closes_when_answered = False
        self._is_stopping = False
        self._is_given_up = False
        self.may_give_up = False
        """Set by the dispatcher: what the current request waits for matters to this client only."""
        self.takes_ranges = False
        """Whether responses may hold parts of files."""
        self.task: asyncio.Task[None] | None = None
        self.peer = ""
        self.made_s = 0.0
        self.last_active_s = 0.0
        self.sasl: SaslSession | None = None
        """Set by the dispatcher where clients must say who they are."""
        self.frame_bytes_max = config.frame_bytes_max

    # Called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports behave like asyncio's but do not inherit from them.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.takes_ranges = takes_ranges(transport)
        loop = asyncio.get_running_loop()
        self.made_s = self.last_active_s = loop.time()
        if not self._dispatcher.connected(self):
            transport.abort()
            return
        self.task = loop.create_task(self._serve())

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._give_back_large()
        self._arrived.set()
        self._can_write.set()
        self._give_up_waiting()
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
        self._statistics.received_bytes += count
        if self._large is not None:
            self._large_filled += count
            self.last_active_s = asyncio.get_running_loop().time()
            if self._large_filled == self._large_length:
                frame, self._large = self._large, None
                self._take(frame)
            elif self._large_filled == len(self._large):
                self._large = _enlarged(self._large, min(2 * len(self._large), self._large_length))
            return
        self._end += count
        was_filled = self._end == len(self._small)
        self._split()
        if was_filled:
            self._enlarge_small()

    # Frames -----------------------------------------------------------------------------------

    def _split(self) -> None:
        """Takes every whole frame out of the small buffer; begins a large one where one starts."""
        while self._end - self._start >= _LENGTH_BYTES and self._transport is not None:
            if self._waits_for_room:
                return
            length = int.from_bytes(self._small[self._start : self._start + 4], "big", signed=True)
            if not self._frame_bytes_min() <= length <= self.frame_bytes_max:
                self._statistics.limit_hit("frame_bytes")
                self.close(f"a frame of {length} bytes is not allowed")
                return
            body = self._start + _LENGTH_BYTES
            if self._end - body >= length:
                self._start = body + length
                self._budget.take(length)
                self._take(self._small[body : body + length])
                continue
            if length + _LENGTH_BYTES > _SMALL_BUFFER_BYTES:
                if self._budget.take_or_wait(self, length, self._begin_large):
                    self._begin_large()
                else:
                    self._waits_for_room = True
                    self._pause_reading()
                return
            if length + _LENGTH_BYTES > len(self._small):
                self._enlarge_small()
            break
        if self._start == self._end:
            self._start = self._end = 0

    def _frame_bytes_min(self) -> int:
        # A mechanism's own message has no header and may even be empty.
        return 0 if self.sasl is not None and self.sasl.takes_raw_tokens else _HEADER_BYTES_MIN

    def _begin_large(self) -> None:
        """Makes room for the frame at the start of the small buffer; the budget has granted it."""
        self._waits_for_room = False
        body = self._start + _LENGTH_BYTES
        length = int.from_bytes(self._small[self._start : body], "big")
        self._large = bytearray(min(length, _LARGE_STEP_BYTES))
        self._large_length = length
        self._large_filled = self._end - body
        self._large_since_s = asyncio.get_running_loop().time()
        self._large[: self._large_filled] = self._small_view[body : self._end]
        self._start = self._end = 0
        self._resume_reading()

    def _enlarge_small(self) -> None:
        if len(self._small) < _SMALL_BUFFER_BYTES:
            self._small = _enlarged(self._small, _SMALL_BUFFER_BYTES)
            self._small_view = memoryview(self._small)

    def _compact(self) -> None:
        size = self._end - self._start
        self._small[:size] = self._small[self._start : self._end]
        self._start, self._end = 0, size

    def _take(self, frame: bytearray) -> None:
        self._held_bytes += len(frame)
        self._frames.append(frame)
        self._arrived.set()
        waiting = len(self._frames) + len(self._outgoing)
        if (
            waiting >= self._config.requests_in_flight_max
            or self._held_bytes >= self._config.bytes_in_flight_max
            or self._budget.is_full
        ):
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._transport.pause_reading()
            self._is_paused = True

    def _answered(self) -> None:
        """Counts the oldest request in flight as done with."""
        if self._outgoing_sizes:
            size = self._outgoing_sizes.popleft()
            self._held_bytes -= size
            self._budget.give_back(size)

    def _give_back_large(self) -> None:
        """The rest of a frame that has begun will not come."""
        self._budget.stop_waiting(self)
        size = 0 if self._large is None else self._large_length
        self._large = None
        self._budget.give_back(size)

    def _give_back_unbegun(self) -> None:
        """Requests that will not be begun are held no longer; the others are once answered."""
        self._frames.clear()
        size = self._held_bytes - sum(self._outgoing_sizes)
        self._held_bytes -= size
        self._budget.give_back(size)

    # Requests -----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            while self._frames or not (self._is_stopping or self._transport is None):
                if not self._frames:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                frame = self._frames.popleft()
                await self._can_write.wait()
                if not await self._begin(frame):
                    return
                del frame  # Else the bytes would stay while the next request is awaited.
            await self.wait_answered()
            self.close("the node is stopping")
        finally:
            self._give_back_unbegun()

    async def _begin(self, frame: bytearray) -> bool:
        """Begins a request; false if the connection must end."""
        loop = asyncio.get_running_loop()
        self.last_active_s = loop.time()
        self._is_working = True
        begun: Awaitable[list[Part] | None] | list[Part] | None
        try:
            begun = await self._dispatcher.begin(frame, self)
        except asyncio.CancelledError:
            if not self._is_given_up:
                raise
            self._is_given_up = False
            begun = None
        except FirnError as error:  # The client sent what it must not; nobody has to act.
            self.close(str(error))
            return False
        except Exception as error:  # Supervisor: a defect costs this client its connection.
            _log.error("request_failed", peer=self.peer, error=repr(error))
            self.close(repr(error))
            return False
        finally:
            self.may_give_up = False
            self._is_working = False
            self.last_active_s = loop.time()
        response: asyncio.Future[list[Part] | None]
        if begun is None or isinstance(begun, list):
            response = loop.create_future()
            response.set_result(begun)
        else:
            response = asyncio.ensure_future(begun)
            response.add_done_callback(self._flush)
        self._outgoing.append(response)
        self._outgoing_sizes.append(len(frame))
        if response.done():
            self._flush(response)
        self._resume_reading()
        return True

    def stop(self) -> None:
        """Reads no more, and closes once the requests that have come are answered."""
        self._is_stopping = True
        self._pause_reading()
        self._arrived.set()
        self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        if self.may_give_up and self.task is not None:
            self.may_give_up = False
            self._is_given_up = True
            self.task.cancel()

    @property
    def is_ending(self) -> bool:
        """Whether nobody is there for an answer that takes its time."""
        return self._is_stopping or self._transport is None

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
            self._answered()
            if response.cancelled():
                continue
            error = response.exception()
            if error is not None:
                _log.error("request_failed", peer=self.peer, error=repr(error))
                self.close(repr(error))
                continue
            parts = response.result()
            if parts and self._transport is not None and not self._transport.is_closing():
                # Every frame begins with its size, so nothing has to be added up.
                size = int.from_bytes(parts[0][:_LENGTH_BYTES], "big")  # type: ignore[index]
                self._statistics.sent_bytes += _LENGTH_BYTES + size
                try:
                    self._transport.writelines(buffers_of(parts))
                except (OSError, ValueError) as error:  # The file was cut, or cannot be mapped.
                    self.close(f"a part of a file cannot be sent: {error}")
        if self._closes_when_answered and not self._outgoing:
            self.close("authentication failed")
        self._resume_reading()

    def _resume_reading(self) -> None:
        if not self._is_paused or self._waits_for_room or self._is_stopping:
            return
        waiting = len(self._frames) + len(self._outgoing)
        has_room = (
            waiting < self._config.requests_in_flight_max // 2
            and self._held_bytes < self._config.bytes_in_flight_max // 2
            and not self._budget.is_full
        )
        # One that holds nothing must read on whatever others hold: nobody would wake it later.
        if has_room or self._held_bytes == 0:
            self._is_paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def overdue(self, now_s: float) -> str | None:
        """Which time-out the connection has passed, if any. One that works is never idle."""
        config = self._config
        if self.sasl is not None and not self.sasl.is_done:
            return "handshake" if now_s - self.made_s > config.handshake_timeout_s else None
        if self._large is not None:
            if now_s - self._large_since_s > config.idle_timeout_s:
                return "idle"
            if self._budget.waiting_count and now_s - self.last_active_s > _STALL_S:
                return "stall"
        if self._is_working or self._waits_for_room:
            return None
        return "idle" if now_s - self.last_active_s > config.idle_timeout_s else None

    def close_when_answered(self) -> None:
        """Closes the connection once the request that is being handled has its response."""
        self._closes_when_answered = True

    def abort(self, reason: str) -> None:
        """Closes without waiting for what the client has not read yet."""
        if self._transport is not None:
            _log.info("connection_closed", peer=self.peer, reason=reason)
            self._transport.abort()

    def close(self, reason: str) -> None:
        if self._transport is not None:
            _log.info("connection_closed", peer=self.peer, reason=reason)
            self._transport.close()


def _enlarged(buffer: bytearray, size: int) -> bytearray:
    """A copy with more room; the old one may still be lent to the event loop."""
    larger = bytearray(size)
    larger[: len(buffer)] = buffer
    return larger
