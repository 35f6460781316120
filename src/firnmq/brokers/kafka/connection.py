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
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from firnmq.brokers.kafka.answers import Answer, Dispatcher, LateAnswer, WaitingAnswer
from firnmq.brokers.kafka.budget import ByteBudget, FrameRoom
from firnmq.brokers.kafka.buffers import FrameBuffers, enlarged
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.protocol import Part
from firnmq.brokers.kafka.security import SaslSession
from firnmq.brokers.kafka.sending import buffers_of, send_small, takes_ranges
from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger

if TYPE_CHECKING:
    from firnmq.brokers.kafka.handlers.fetch_quick import FetchRoute
    from firnmq.brokers.kafka.handlers.produce_direct import DirectProduce, ProduceRoute

_LENGTH_BYTES = 4
_unpack_length = struct.Struct(">i").unpack_from
_IDLE_BUFFER_BYTES = 4 * 1024
"""What every connection has; most requests fit."""
_SMALL_BUFFER_BYTES = 64 * 1024
"""What a connection has that once filled the first one. Larger frames get a buffer of their own."""
_BUSY_BUFFER_BYTES = 256 * 1024
"""What a connection has that filled that one too: many small requests are then handled at once."""
_STALL_S = 10.0
"""Seconds in which nothing came of a large frame, after which others may have its room."""
_STEP_BYTES_PER_S_MIN = 64 * 1024
"""How fast a large frame has to come, at least, while others wait for room."""
_HEADER_BYTES_MIN = 8
_JOINED_BYTES_MAX = 16 * 1024
"""Answers up to this size are copied into one: cheaper than to hand over each by itself."""

_log = EventLogger("kafka")


class KafkaConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection. Owned by the event loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: KafkaConfig,
        *,
        budget: ByteBudget,
        buffers: FrameBuffers,
        statistics: BrokerStatistics,
    ) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._budget = budget
        self._buffers = buffers
        self._statistics = statistics
        self.loop = asyncio.get_running_loop()
        """Kept, since asking for it is a system call before Python 3.12."""
        self._transport: asyncio.Transport | None = None
        self._small = bytearray(_IDLE_BUFFER_BYTES)
        self._small_view = memoryview(self._small)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_length = 0
        """Bytes that the large frame will have."""
        self._large_room: FrameRoom | None = None
        """What the budget has counted of a large frame that has begun or waits to begin."""
        self._large_filled = 0
        self._large_step_s = 0.0
        """When the frame was given the room that it fills now."""
        self._large_since_s = 0.0
        self._frames: deque[bytearray] = deque()
        self._arrived = asyncio.Event()
        self._outgoing: deque[Answer] = deque()
        self._flush_is_due = False
        self._is_receiving = False
        self._all_answered: asyncio.Future[None] | None = None
        """Made for whoever waits until `_outgoing` is empty."""
        self._held_bytes = 0
        """Bytes of whole requests that have not been answered."""
        self._waits_for_room = False
        """A large frame has begun and the budget has no room for it yet."""
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_full = False
        """The same, for those who do not wait."""
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
        self.produce_route: ProduceRoute | None = None
        """Kept for the dispatcher: where this client's produce requests go."""
        self.produce_direct: DirectProduce | None = None
        """Kept for the dispatcher: what carries them out where nothing else is in the way."""
        self.fetch_route: FetchRoute | None = None
        """Kept for the dispatcher: what this client's fetch requests read."""
        self._waiting: WaitingAnswer | None = None
        """The answer that whatever comes next has to wait for."""
        self._fd = -1
        """Where small answers can be written at once; -1 if the transport must do it."""

    # Called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports behave like asyncio's but do not inherit from them.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.takes_ranges = takes_ranges(transport)
        if self.takes_ranges:
            self._fd = transport.get_extra_info("socket").fileno()
        self.made_s = self.last_active_s = self.loop.time()
        if not self._dispatcher.connected(self):
            transport.abort()
            return
        self.task = self.loop.create_task(self._serve())

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._give_back_large()
        self._arrived.set()
        self._can_write.set()
        self._give_up_waiting()
        self._dispatcher.disconnected(self)

    def pause_writing(self) -> None:
        self._is_full = True
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._is_full = False
        self._can_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        if self._end == len(self._small):
            self._compact()
        return self._small_view[self._end :]

    def buffer_updated(self, count: int) -> None:
        direct = self.produce_direct
        if direct is not None and self._end == 0 and self._produced_directly(direct, count):
            return
        self._is_receiving = True
        try:
            self._received(count)
        finally:
            self._is_receiving = False
            if self._flush_is_due:
                self._flush()

    def _produced_directly(self, direct: DirectProduce, count: int) -> bool:
        """Carries out the request that was received, if it is one and nothing is in its way."""
        if (
            self._large is not None
            or self._outgoing
            or self._frames
            or self._is_working
            or self._is_stopping
            or self._waits_for_room
            or self._is_full
        ):
            return False
        try:
            answer = direct.take(self._small, self._small_view, count)
            if answer is None:
                return False
            if answer:
                send_small(self._transport, self._fd, answer)
            direct.finish()
        except Exception as error:  # Supervisor: a defect costs this client its connection.
            self._fail(error)
            return True
        self._statistics.received_bytes += count
        self._statistics.sent_bytes += len(answer)
        self.last_active_s = self.loop.time()
        return True

    def _received(self, count: int) -> None:
        self._statistics.received_bytes += count
        if self._large is not None:
            self._large_filled += count
            self.last_active_s = self.loop.time()
            if self._large_filled == self._large_length:
                self._end_large()
            elif self._large_filled == len(self._large):
                self._take_room(self._grow_large)
            return
        self._end += count
        was_filled = self._end == len(self._small)
        self._split()
        self._hand_over()
        if was_filled:
            self._enlarge_small()

    # Frames -----------------------------------------------------------------------------------

    def _split(self) -> None:
        """Takes every whole frame out of the small buffer; begins a large one where one starts."""
        while self._end - self._start >= _LENGTH_BYTES and self._transport is not None:
            if self._waits_for_room:
                return
            (length,) = _unpack_length(self._small, self._start)
            if not _HEADER_BYTES_MIN <= length <= self.frame_bytes_max and (
                not 0 <= length <= self.frame_bytes_max or not self._takes_raw_tokens
            ):
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
                self._large_room = FrameRoom(self._budget, length)
                self._take_room(self._begin_large, self._end - body)
                return
            if length + _LENGTH_BYTES > len(self._small):
                self._enlarge_small()
            break
        if self._start == self._end:
            self._start = self._end = 0

    @property
    def _takes_raw_tokens(self) -> bool:
        # A mechanism's own message has no header and may even be empty.
        return self.sasl is not None and self.sasl.takes_raw_tokens

    def _take_room(self, go_on: Callable[[], None], received: int = 0) -> None:
        """Goes on once the budget has room for more of the large frame; reads nothing before."""
        assert self._large_room is not None
        if self._large_room.take_step(go_on, received):
            go_on()
        else:
            self._waits_for_room = True
            self._pause_reading()

    def _begin_large(self) -> None:
        """Takes the frame at the start of the small buffer into one of its own."""
        assert self._large_room is not None
        self._waits_for_room = False
        body = self._start + _LENGTH_BYTES
        length = int.from_bytes(self._small[self._start : body], "big")
        # More than what has come already: nothing is read while waiting for room.
        self._large = self._buffers.take(self._large_room.size_bytes)
        self._large_length = length
        self._large_filled = self._end - body
        self._large_since_s = self._large_step_s = self.loop.time()
        self._large[: self._large_filled] = self._small_view[body : self._end]
        self._start = self._end = 0
        self._resume_reading()

    def _grow_large(self) -> None:
        assert self._large is not None
        assert self._large_room is not None
        self._waits_for_room = False
        self._large_step_s = self.loop.time()
        self._large = enlarged(self._large, self._large_room.size_bytes)
        self._resume_reading()

    def _end_large(self) -> None:
        assert self._large is not None
        assert self._large_room is not None
        frame, self._large = self._large, None
        room, self._large_room = self._large_room, None
        self._take(frame)
        room.end()
        self._hand_over()

    def _enlarge_small(self) -> None:
        size = len(self._small)
        if size < _BUSY_BUFFER_BYTES:
            larger = _SMALL_BUFFER_BYTES if size < _SMALL_BUFFER_BYTES else _BUSY_BUFFER_BYTES
            self._small = enlarged(self._small, larger)
            self._small_view = memoryview(self._small)

    def _compact(self) -> None:
        size = self._end - self._start
        self._small[:size] = self._small[self._start : self._end]
        self._start, self._end = 0, size

    def _take(self, frame: bytearray) -> None:
        self._held_bytes += len(frame)
        if not self._begin_now(frame):
            self._frames.append(frame)
            self._arrived.set()

    def _hand_over(self) -> None:
        """What has arrived together is given to storage; reading stops if that was enough."""
        self._dispatcher.hand_over()
        if self._outgoing:  # Not for part of a request: a client may take too long to send it.
            self.last_active_s = self.loop.time()
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

    def _begin_now(self, frame: bytearray) -> bool:
        """Begins a request without the task that serves the others, if none is before it there."""
        if (
            self._frames
            or self._is_working
            or self._is_stopping
            or self._waiting is not None
            or self._is_full
        ):
            return False
        try:
            answer = self._dispatcher.begin_now(frame, self)
            if answer is None and not self._outgoing:
                answer = self._waiting = self._dispatcher.begin_wait(frame, self)
        except Exception as error:  # Supervisor: a defect costs this client its connection.
            self._fail(error)
            return False
        if answer is None:
            return False
        self._outgoing.append(answer)
        if answer.is_ready and answer is self._waiting:
            self.wait_ended()
        return True

    def _give_back_large(self) -> None:
        """The rest of a frame that has begun will not come."""
        room, self._large_room = self._large_room, None
        self._large = None
        if room is not None:
            room.give_back()

    def _give_back_unbegun(self) -> None:
        """Requests that will not be begun are held no longer; the others are once answered."""
        self._frames.clear()
        size = self._held_bytes - sum(answer.size_bytes for answer in self._outgoing)
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
                await self._can_write.wait()
                if self._waiting is not None:
                    await self.wait_answered()
                    continue
                # Taken no earlier: what comes meanwhile must find it before itself.
                frame = self._frames.popleft()
                if not await self._begin(frame):
                    return
                del frame  # Else the bytes would stay while the next request is awaited.
            await self.wait_answered()
            self.close("the node is stopping")
        finally:
            self._give_back_unbegun()

    async def _begin(self, frame: bytearray) -> bool:
        """Begins a request; false if the connection must end."""
        self.last_active_s = self.loop.time()
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
            self._fail(error)
            return False
        finally:
            self.may_give_up = False
            self._is_working = False
            self.last_active_s = self.loop.time()
        answer = LateAnswer(len(frame))
        self._outgoing.append(answer)
        if begun is None or isinstance(begun, list):
            answer.become_ready(begun)
            self._flush()
        else:
            asyncio.ensure_future(begun).add_done_callback(lambda done: self._finish(answer, done))
        self._resume_reading()
        return True

    def _finish(self, answer: LateAnswer, done: asyncio.Future[list[Part] | None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._fail(error)
        answer.become_ready(None if done.cancelled() or error is not None else done.result())
        self.answer_ready()

    def _fail(self, error: BaseException) -> None:
        _log.error("request_failed", peer=self.peer, error=repr(error))
        self.close(repr(error))

    def stop(self) -> None:
        """Reads no more, and closes once the requests that have come are answered."""
        self._is_stopping = True
        self._pause_reading()
        self._arrived.set()
        self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.give_up()
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
        if self._outgoing:
            if self._all_answered is None:
                self._all_answered = self.loop.create_future()
            await asyncio.shield(self._all_answered)

    def wait_ended(self) -> None:
        """Sends the answer that everything else had to wait for."""
        answer, self._waiting = self._waiting, None
        outgoing = self._outgoing
        parts = None if answer is None else answer.parts
        if answer is None or parts is None or len(outgoing) != 1 or len(parts) != 1:
            self._flush()
            return
        (frame,) = parts
        if not isinstance(frame, bytes):
            self._flush()
            return
        outgoing.clear()
        self._statistics.sent_bytes += len(frame)
        send_small(self._transport, self._fd, frame)
        self._answered(answer.size_bytes)

    def wait_failed(self, error: BaseException) -> None:
        """The same where there is none, because of a defect."""
        self._fail(error)

    def answer_ready(self) -> None:
        """Sends answers soon: those that become ready together are written together."""
        if not self._flush_is_due:
            self._flush_is_due = True
            if not self._is_receiving:  # Else it is done once everything received was handled.
                self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Writes answers that are ready, from the oldest on."""
        self._flush_is_due = False
        outgoing = self._outgoing
        parts: list[Part] = []
        answered_bytes = sent_bytes = 0
        while outgoing and outgoing[0].is_ready:
            answer = outgoing.popleft()
            answered_bytes += answer.size_bytes
            if answer.parts:
                # Every frame begins with its size, so nothing has to be added up.
                size = int.from_bytes(answer.parts[0][:_LENGTH_BYTES], "big")  # type: ignore[index]
                sent_bytes += _LENGTH_BYTES + size
                parts += answer.parts
        if parts and self._transport is not None and not self._transport.is_closing():
            self._statistics.sent_bytes += sent_bytes
            self._write(self._transport, parts, sent_bytes)
        self._answered(answered_bytes)

    def _answered(self, size_bytes: int) -> None:
        """Requests of this size are answered, from the oldest on."""
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)
        if not self._outgoing:
            if self._all_answered is not None:
                self._all_answered.set_result(None)
                self._all_answered = None
            if self._closes_when_answered:
                self.close("authentication failed")
        self._resume_reading()

    def _write(self, transport: asyncio.Transport, parts: list[Part], size: int) -> None:
        try:
            buffers = buffers_of(parts)
        except (OSError, ValueError) as error:  # The file was cut, or cannot be mapped.
            self.close(f"a part of a file cannot be sent: {error}")
            return
        if size <= _JOINED_BYTES_MAX:  # No range is so small.
            send_small(transport, self._fd, b"".join(buffers))
        else:
            transport.writelines(buffers)

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
            if self._large is not None:  # It could not come meanwhile.
                self._large_step_s = self.last_active_s = self.loop.time()
            if self._transport is not None:
                self._transport.resume_reading()

    def overdue(self, now_s: float) -> str | None:
        """Which time-out the connection has passed, if any. One that works is never idle."""
        config = self._config
        if self.sasl is not None and not self.sasl.is_done:
            return "handshake" if now_s - self.made_s > config.handshake_timeout_s else None
        if self._waits_for_room:
            return None
        if self._large is not None:
            if now_s - self._large_since_s > config.idle_timeout_s:
                return "idle"
            if self._budget.waiting_count and not self._is_paused and self._is_slow(now_s):
                return "stall"
        if self._is_working or self._waiting is not None:
            return None
        return "idle" if now_s - self.last_active_s > config.idle_timeout_s else None

    def _is_slow(self, now_s: float) -> bool:
        """Whether others need not wait any longer for the large frame that is coming."""
        assert self._large is not None
        step_s = _STALL_S + len(self._large) / _STEP_BYTES_PER_S_MIN
        return now_s - self.last_active_s > _STALL_S or now_s - self._large_step_s > step_s

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
