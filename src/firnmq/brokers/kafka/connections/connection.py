"""One client's connection: frames to requests in order, responses in order.

Requests are begun in the order they came and answered in that order. Only produce requests
overlap: the next is begun once the one before is queued with its shard, not once it is durable.

A client that is gone leaves its requests behind: those it sent are carried out, because nothing
tells it otherwise where it wants no answer, and half a topic would be in everybody's way. Only a
request that merely waits is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.connections import states as after
from firnmq.brokers.kafka.connections.answers import Answer, Dispatcher, LateAnswer, WaitingAnswer
from firnmq.brokers.kafka.connections.frame_receiver import HEADER_BYTES_MIN, FrameReceiver, Verdict
from firnmq.brokers.kafka.connections.sasl import SaslSession
from firnmq.brokers.kafka.connections.states import Life, Reading, Sending, Serving, Writing
from firnmq.brokers.kafka.protocol import Part
from firnmq.brokers.kafka.protocol.bounds import REQUEST_BYTES_MAX
from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.brokers.net.byte_budget import ByteBudget, ByteShare
from firnmq.brokers.net.client_progress import STALL_S, DrainWatch
from firnmq.brokers.net.frame_buffers import FrameBuffers
from firnmq.brokers.net.held_bytes import HeldBytes
from firnmq.brokers.net.limit_log import LimitLog
from firnmq.brokers.net.listener import ServedConnection
from firnmq.brokers.net.loop_turns import Stint
from firnmq.brokers.net.memory_pressure import MemoryPressure
from firnmq.brokers.net.sending import send, send_small, takes_ranges
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger

if TYPE_CHECKING:
    from firnmq.brokers.kafka.handlers.fetch_quick import FetchRoute
    from firnmq.brokers.kafka.handlers.produce_fast import ProduceRoute
    from firnmq.brokers.security.acl import Access

_LENGTH_BYTES = 4
_FIRST_BYTES = 1024
"""Of a frame that is too large: enough to say in an answer what is wrong."""
_REFUSED_FRAMES = 2
"""Frames of up to twice the allowed size are read, thrown away and answered. What is larger is no
request, such as the first bytes of HTTP, and ends the connection."""

# What every request needs: a global name costs less than an attribute.
_RECEIVE, _READY, _FLUSH, _RECEIVED = after.RECEIVE, after.READY, after.FLUSH, after.RECEIVED
_AT_ONCE, _COLLECTED = Sending.AT_ONCE, Sending.COLLECTED
_PAUSED, _STOPPED, _IDLE = Reading.PAUSED, Reading.STOPPED, Serving.IDLE
_FULL, _LAST_ANSWER = Writing.FULL, Life.LAST_ANSWER

_log = EventLogger("kafka")


class KafkaConnection(asyncio.BufferedProtocol, ServedConnection):
    """The protocol object of one connection. Owned by the event loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: KafkaConfig,
        *,
        budget: ByteBudget | ByteShare,
        buffers: FrameBuffers,
        pressure: MemoryPressure,
        limits: LimitLog,
        statistics: BrokerStatistics,
    ) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._limits = limits
        self._statistics = statistics
        self.loop = asyncio.get_running_loop()
        """Kept, since asking for it is a system call before Python 3.12."""
        self.held = HeldBytes(budget)
        self._receiver = FrameReceiver(self, self.held, buffers, pressure, self.loop.time)
        self._transport: asyncio.Transport | None = None
        self._frames: deque[bytearray | list[Part]] = deque()
        """Requests that wait to be begun; of those that were discarded, the answer."""
        self._arrived = asyncio.Event()
        self._outgoing: deque[Answer] = deque()
        self._life = Life.NEW
        self._reading = Reading.ON
        self._serving = Serving.IDLE
        self._sending = Sending.AT_ONCE
        self._writing = Writing.FREE
        self._all_answered: asyncio.Future[None] | None = None
        """Made for a coroutine that waits until `_outgoing` is empty."""
        self._refusal: list[Part] | None = None
        """The answer to the frame that is being discarded."""
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._drain = DrainWatch()
        self.takes_ranges = False
        """Whether responses may hold parts of files."""
        self.task: asyncio.Task[None] | None = None
        self.peer = self.principal = ""  # The principal is set by the dispatcher.
        self.certificate: Mapping[str, Any] | None = None
        self.when_lost: Callable[[], None] | None = None  # Set by the listener, which counts.
        self.made_s = self.last_active_s = 0.0
        self.has_asked = False
        self.sasl: SaslSession | None = None
        """Set by the dispatcher where clients must say who they are."""
        self.access: Access | None = None
        """Set by the dispatcher where clients may not do everything."""
        self.limit_frames(config.frame_bytes_max)
        # Kept for the dispatcher: where produce requests go, and what fetch requests read.
        self.produce_route: ProduceRoute | None = None
        self.fetch_route: FetchRoute | None = None
        self.fetch_first: tuple[str, int] | None = None
        """Kept for the dispatcher: which of this client's partitions is read first."""
        self._waiting: WaitingAnswer | None = None  # What comes next has to wait for it.
        self._fd = -1
        """Where small answers can be written at once; -1 if the transport must do it."""

    # Called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._life = after.MADE[self._life]
        # Not asserted: uvloop's transports behave like asyncio's but do not inherit from them.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.certificate = transport.get_extra_info("peercert")
        self.takes_ranges = takes_ranges(transport)
        if self.takes_ranges:
            self._fd = transport.get_extra_info("socket").fileno()
        self.made_s = self.last_active_s = self.loop.time()
        self._dispatcher.connected(self)
        self.task = self.loop.create_task(self._serve())

    def connection_lost(self, error: Exception | None) -> None:
        self._life = after.LOST[self._life]
        self._reading = after.STOP[self._reading]
        self._transport = None
        self._receiver.end_all()
        self._arrived.set()
        self._can_write.set()
        self._give_up_waiting()
        self._dispatcher.disconnected(self)
        if self.when_lost is not None:
            self.when_lost()

    def pause_writing(self) -> None:
        self._writing = after.FILLED[self._writing]
        self._can_write.clear()
        if self._transport is not None:
            self._drain.begin(self._transport.get_write_buffer_size(), self.loop.time())

    def resume_writing(self) -> None:
        self._writing = after.DRAINED[self._writing]
        self._can_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.vacant()

    def buffer_updated(self, count: int) -> None:
        if self.produce_route is not None and self._receiver.is_empty and self._begin_alone(count):
            return
        self._sending = _RECEIVE[self._sending]
        try:
            self._statistics.received_bytes += count
            self._receiver.received(count)
            self._submit()
        finally:
            sending = self._sending
            self._sending = _RECEIVED[sending]
            if sending is _COLLECTED:
                self._flush()
        try:
            self._dispatcher.wake()
        except Exception as error:  # Supervisor: a defect costs this client its connection.
            self._fail(error)

    def _begin_alone(self, count: int) -> bool:
        """Begins the request that was received, if it is whole and nothing is before it. One that
        is answered at once is neither counted nor queued."""
        if (
            self._outgoing
            or self._frames
            or self._serving is not _IDLE
            or self._reading is _STOPPED
            or self._writing is _FULL
        ):
            return False
        frame = self._receiver.frame_of(count)
        if frame is None:
            return False
        dispatcher = self._dispatcher
        self._sending = _RECEIVE[self._sending]
        try:
            answer = dispatcher.begin_now(frame, self)
            if answer is None:
                return False
            dispatcher.submit()
            self._statistics.received_bytes += count
            self.last_active_s = self.loop.time()
            if answer.is_ready:
                self._sending = _FLUSH[self._sending]
                self._send_now(answer)
            else:
                self._outgoing.append(answer)
                self.held.take_request(answer.size_bytes)
                self._pause_if_full()
            dispatcher.wake()
        except Exception as error:  # Supervisor: a defect costs this client its connection.
            self._fail(error)
        finally:
            sending = self._sending
            self._sending = _RECEIVED[sending]
            if sending is _COLLECTED:
                self._flush()
        return True

    def _send_now(self, answer: Answer) -> None:
        for frame in answer.parts or ():
            assert isinstance(frame, bytes)
            self._statistics.sent_bytes += len(frame)
            send_small(self._transport, self._fd, frame)

    # Called by the receiver -------------------------------------------------------------------

    def may_begin(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def judge(self, length: int, first: memoryview) -> Verdict:
        sasl = self.sasl
        if sasl is not None and not sasl.is_done:
            # A mechanism's own message has no header and may even be empty.
            if 0 <= length <= self._frame_bytes_max and sasl.takes_raw_tokens:
                return Verdict.TAKE
            self._limits.hit("frame_bytes", self.peer, reason=f"a frame of {length:,} bytes")
        elif HEADER_BYTES_MIN <= length <= self._frame_bytes_max * _REFUSED_FRAMES:
            verdict = self._judge_long(length, first)
            if verdict is not Verdict.END:
                return verdict
            # Counted where it was judged.
        else:
            self._limits.hit("frame_bytes", self.peer, reason=f"a frame of {length:,} bytes")
        self.close()
        return Verdict.END

    def _judge_long(self, length: int, first: memoryview) -> Verdict:
        if len(first) < min(length, _FIRST_BYTES):
            return Verdict.LATER
        is_allowed, self._refusal = self._dispatcher.judge(length, first[:_FIRST_BYTES], self)
        if is_allowed:
            return Verdict.TAKE
        return Verdict.END if self._refusal is None else Verdict.DISCARD

    def take_frame(self, frame: bytearray) -> None:
        self.has_asked = True
        if not self._begin_now(frame):
            self._frames.append(frame)
            self._arrived.set()

    def take_discarded(self) -> None:
        assert self._refusal is not None
        self.has_asked = True
        self._frames.append(self._refusal)
        self._arrived.set()

    # Frames -----------------------------------------------------------------------------------

    def _submit(self) -> None:
        """What has arrived together is given to storage; reading stops if that was enough."""
        self._dispatcher.submit()
        if self._outgoing:  # Not for part of a request: a client may take too long to send it.
            self.last_active_s = self.loop.time()
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        held_bytes = self.held.request_bytes
        waiting = len(self._frames) + len(self._outgoing)
        if not waiting and not held_bytes:
            return  # No answer would come after which reading goes on.
        if (
            waiting >= self._config.requests_in_flight_max
            or held_bytes >= self._config.bytes_in_flight_max
            or self.held.share.is_full
        ):
            self.pause_reading()

    def pause_reading(self) -> None:
        if self._reading is Reading.ON:
            self._reading = after.PAUSE[self._reading]
            self._stop_receiving()

    def _stop_receiving(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()
        self._receiver.pause()

    def _begin_now(self, frame: bytearray) -> bool:
        """Begins a request without the task that serves the others, if none is before it there."""
        if (
            self._frames
            or self._serving is not _IDLE
            or self._reading is _STOPPED
            or self._writing is _FULL
        ):
            return False
        try:
            answer = self._dispatcher.begin_now(frame, self)
            if answer is None and not self._outgoing:
                answer = self._waiting = self._dispatcher.begin_wait(frame, self)
                if answer is not None:
                    self._serving = after.WATCH[self._serving]
        except Exception as error:  # Supervisor: a defect costs this client its connection.
            self._fail(error)
            return False
        if answer is None:
            return False
        self._outgoing.append(answer)
        if answer.is_ready and answer is self._waiting:
            self.wait_ended()
        return True

    def limit_frames(self, size: int) -> None:
        """From now on a frame may have so many bytes."""
        self._frame_bytes_max = size
        self._receiver.usual_bytes_max = min(size, REQUEST_BYTES_MAX)

    def move_to(self, share: ByteShare) -> None:
        """Counts what this connection holds in another share from now on."""
        if self._receiver.large is None:  # Else the frame that comes is counted where it began.
            self.held.move_to(share)

    def _give_back_unbegun(self) -> None:
        """Requests that will not be begun are held no longer; the others are once answered."""
        self._frames.clear()
        begun_bytes = sum(answer.size_bytes for answer in self._outgoing)
        self.held.give_back_requests(self.held.request_bytes - begun_bytes)

    # Requests -----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        stint = Stint(self._dispatcher.turns)  # A client may send requests faster than it reads.
        try:
            while self._frames or self._reading is not _STOPPED:
                if not self._frames:
                    self._arrived.clear()
                    await self._arrived.wait()
                    stint.begin()
                    continue
                if stint.is_over:
                    await stint.give_way()
                await self._can_write.wait()
                if self._serving is Serving.WATCHING:
                    await self.wait_answered()
                    continue
                # Taken no earlier: a frame that arrives must find this one still queued before it.
                frame = self._frames.popleft()
                if not await self._begin(frame):
                    return
                del frame  # Else the bytes would stay while the next request is awaited.
            await self.wait_answered()
            self.close()
        finally:
            self._give_back_unbegun()

    async def _begin(self, frame: bytearray | list[Part]) -> bool:
        """Begins a request; false if the connection must end. Of a frame that was discarded, the
        answer is given."""
        self.last_active_s = self.loop.time()
        self._serving = after.BEGIN[self._serving]
        begun: Awaitable[list[Part] | None] | list[Part] | None
        try:
            begun = frame if isinstance(frame, list) else await self._dispatcher.begin(frame, self)
        except asyncio.CancelledError:
            if self._serving is not Serving.GIVEN_UP:
                raise
            begun = None
        except FirnError as error:  # The client's fault: no operator has to act.
            self._limits.note("connection_closed", type(error).__name__, self.peer, reason=error)
            self.close()
            return False
        except Exception as error:  # Supervisor: a defect costs this client its connection.
            self._fail(error)
            return False
        finally:
            self._serving = after.END[self._serving]
            self.last_active_s = self.loop.time()
        answer = LateAnswer(len(frame) if isinstance(frame, bytearray) else 0)
        self._outgoing.append(answer)
        if begun is None or isinstance(begun, list):
            answer.become_ready(begun)
            self._flush()
        else:
            asyncio.ensure_future(begun).add_done_callback(lambda done: self._finish(answer, done))
        self.resume_reading()
        return True

    def _finish(self, answer: LateAnswer, done: asyncio.Future[list[Part] | None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._fail(error)
        answer.become_ready(None if done.cancelled() or error is not None else done.result())
        self.answer_ready()

    def _fail(self, error: BaseException) -> None:
        _log.error("request_failed", peer=self.peer, error=repr(error))
        self.close()

    def stop(self) -> None:
        """Reads no more, and closes once the requests that have come are answered."""
        was_reading = self._reading is Reading.ON
        self._reading = after.STOP[self._reading]
        if was_reading:
            self._stop_receiving()
        self._arrived.set()
        self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.give_up()
        if self._serving is Serving.WAITING and self.task is not None:
            self._serving = after.GIVE_UP[self._serving]
            self.task.cancel()

    def may_give_up(self) -> None:
        """What the current request waits for from now on matters to this client only."""
        self._serving = after.WAIT[self._serving]

    @property
    def is_ending(self) -> bool:
        """Whether the connection ends, so that no request should wait long for its answer."""
        return self._reading is _STOPPED

    async def wait_answered(self) -> None:
        """Returns when every request begun so far has been answered."""
        if self._outgoing:
            if self._all_answered is None:
                self._all_answered = self.loop.create_future()
            await asyncio.shield(self._all_answered)

    def wait_ended(self) -> None:
        """Sends the answer that everything else had to wait for."""
        answer, self._waiting = self._waiting, None
        if answer is not None:
            self._serving = after.WATCHED[self._serving]
        parts = None if answer is None else answer.parts
        frame = parts[0] if parts and len(parts) == 1 else None
        if answer is None or len(self._outgoing) != 1 or not isinstance(frame, bytes):
            self._flush()
            return
        self._outgoing.clear()
        self._statistics.sent_bytes += len(frame)
        send_small(self._transport, self._fd, frame)
        self._answered(answer.size_bytes)

    def wait_failed(self, error: BaseException) -> None:
        """The same where there is none, because of a defect."""
        self._fail(error)

    def answer_ready(self) -> None:
        """Sends answers soon: those that become ready together are written together."""
        sending = self._sending
        if sending is _AT_ONCE and len(self._outgoing) == 1:  # There is none to wait for.
            self._flush()
            return
        self._sending = _READY[sending]
        if sending is _AT_ONCE:
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Writes answers that are ready, from the oldest on."""
        self._sending = _FLUSH[self._sending]
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
        self.held.give_back_requests(size_bytes)
        if not self._outgoing:
            if self._all_answered is not None:
                self._all_answered.set_result(None)
                self._all_answered = None
            if self._life is _LAST_ANSWER:
                self.close()
        self.resume_reading()

    def _write(self, transport: asyncio.Transport, parts: list[Part], size: int) -> None:
        try:
            send(transport, self._fd, parts, size)
        except (OSError, ValueError) as error:  # The file was truncated, or cannot be mapped.
            reason = f"a part of a file cannot be sent: {error}"
            self._limits.note("connection_closed", "file_range", self.peer, reason=reason)
            self.close()

    def resume_reading(self) -> None:
        if self._reading is not _PAUSED or self._receiver.waits_for_memory:
            return
        waiting = len(self._frames) + len(self._outgoing)
        has_room = (
            waiting < self._config.requests_in_flight_max // 2
            and self.held.request_bytes < self._config.bytes_in_flight_max // 2
            and not self.held.share.is_full
        )
        # One that holds nothing must read on whatever others hold: nothing would wake it later.
        if has_room or self.held.request_bytes == 0:
            self._reading = after.RESUME[self._reading]
            self._receiver.resume()
            if self._transport is not None:
                self._transport.resume_reading()

    def overdue(self, now_s: float) -> str | None:
        """Which time-out the connection has passed, if any. One that works is never idle."""
        config = self._config
        if self._writing is _FULL:
            self._is_stuck(now_s)  # So that old progress is not taken for new later.
        if self.sasl is not None and not self.sasl.is_done:
            return "handshake" if now_s - self.made_s > config.handshake_timeout_s else None
        if self._receiver.waits_for_memory:
            return None
        if frame_age_s := self._receiver.frame_age_s(now_s):
            return "idle" if frame_age_s > config.idle_timeout_s else None
        if self._serving is not _IDLE:
            return None
        return "idle" if now_s - self.last_active_s > config.idle_timeout_s else None

    # Memory that other clients may need -------------------------------------------------------

    @property
    def share(self) -> ByteBudget | ByteShare:
        return self.held.share

    @property
    def reclaimable_bytes(self) -> int:
        return self._receiver.partial_bytes + self._unbegun_bytes()

    def _unbegun_bytes(self) -> int:
        """Bytes of requests that cannot begin because the client does not read, or because one
        before them waits for something that only this client wants to know."""
        if not self._frames or not (self._writing is _FULL or self._waits_for_itself):
            return 0
        return sum(len(frame) for frame in self._frames if isinstance(frame, bytearray))

    @property
    def _waits_for_itself(self) -> bool:
        return self._serving in (Serving.WATCHING, Serving.WAITING)

    def shrink(self) -> None:
        self._receiver.shrink()

    def is_stalled(self, now_s: float) -> bool:
        if self._writing is _FULL and self._is_stuck(now_s):
            return True
        if self._reading is Reading.ON and self._receiver.is_stalled(now_s):
            return True
        waits = self._waits_for_itself and bool(self._frames)
        return waits and now_s - self.last_active_s > STALL_S

    def _is_stuck(self, now_s: float) -> bool:
        left = None if self._transport is None else self._transport.get_write_buffer_size()
        return left is not None and self._drain.is_stuck(left, now_s)

    def frame_age_s(self, now_s: float) -> float:
        return self._receiver.frame_age_s(now_s)

    def frame_bytes_per_s(self, now_s: float) -> float:
        return self._receiver.frame_bytes_per_s(now_s)

    def evict(self) -> int:
        coming_bytes = self._unbegun_bytes()
        self._receiver.give_up()
        self._limits.hit("memory", self.peer, reason="other clients need its memory")
        self.abort()
        return coming_bytes

    def close_when_answered(self) -> None:
        """Closes the connection once the request that is being handled has its response."""
        self._life = after.LAST_ANSWER[self._life]

    def abort(self) -> None:
        """Closes without waiting for what the client has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
