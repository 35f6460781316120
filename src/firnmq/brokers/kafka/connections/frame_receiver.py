"""The bytes of a connection and the frames in them.

Received bytes go straight into the buffer that the frame will live in, so a produced batch is not
copied between the socket and the disk. A frame that may not be so large is read and thrown away, if
its client can be told so in an answer; else the connection ends.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Protocol

from firnmq.brokers.kafka.connections.large_frame import LargeFrame
from firnmq.brokers.net.client_progress import STALL_S
from firnmq.brokers.net.frame_buffers import FrameBuffers, resized
from firnmq.brokers.net.held_bytes import HeldBytes
from firnmq.brokers.net.memory_pressure import MemoryPressure

_LENGTH_BYTES = 4
_unpack_length = struct.Struct(">i").unpack_from
IDLE_BUFFER_BYTES = 4 * 1024
"""What every connection has; most requests fit."""
_SMALL_BUFFER_BYTES = 64 * 1024
"""What a connection has that once filled the first one. Larger frames get a buffer of their own."""
_BUSY_BUFFER_BYTES = 256 * 1024
"""What a connection has that filled that one too: many small requests are then handled at once."""
HEADER_BYTES_MIN = 8
_discarded = memoryview(bytearray(256 * 1024))
"""Where bytes go that are not looked at; all connections write into it."""


class Verdict(enum.Enum):
    """What becomes of a frame."""

    TAKE = "take"
    LATER = "later"
    """Decided when more of it has come."""
    DISCARD = "discard"
    END = "end"
    """The connection has been ended."""


class FrameTaker(Protocol):
    """The connection, as the receiver sees it."""

    def may_begin(self) -> bool:
        """Whether frames are taken at all; false once the connection has ended."""

    def judge(self, length: int, first: memoryview) -> Verdict:
        """Decides about a frame of unusual length, of which the first bytes are here."""

    def take_frame(self, frame: bytearray) -> None:
        """Takes a whole frame, which is counted in `HeldBytes`."""

    def take_discarded(self) -> None:
        """The frame that was to be discarded has come."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class FrameReceiver:
    """Splits what one client sends into frames. Owned by the event loop."""

    def __init__(
        self,
        taker: FrameTaker,
        held: HeldBytes,
        buffers: FrameBuffers,
        pressure: MemoryPressure,
        clock: Callable[[], float],
    ) -> None:
        self._taker = taker
        self._held = held
        self._buffers = buffers
        self._pressure = pressure
        self._clock = clock
        self.small = bytearray(IDLE_BUFFER_BYTES)
        self.small_view = memoryview(self.small)
        self._start = self.end = 0
        """Where the bytes are in the small buffer that are not part of a frame yet."""
        self.large: LargeFrame | None = None
        """The large frame that comes, or waits for memory."""
        self.waits_for_memory = False
        """The large frame has begun, and there is no memory for its next bytes yet."""
        self._discarded_left = 0
        """Bytes of a frame that are still to come and are thrown away."""
        self.usual_bytes_max = 0
        """Set by the taker: longer frames are judged by it, as are those that are too short."""
        self.partial_since_s = 0.0
        """When the frame began whose first bytes are in the small buffer; 0 if there is none."""

    @property
    def is_empty(self) -> bool:
        """Whether the next bytes are the first of a frame."""
        return self.end == 0 and self.large is None and not self._discarded_left

    def vacant(self) -> memoryview:
        """Where the next bytes go."""
        if self.large is not None and self.large.is_begun:
            return self.large.vacant()
        if self._discarded_left:
            return _discarded[: self._discarded_left]
        if self.end == len(self.small):
            self._compact()
        return self.small_view[self.end :]

    def frame_of(self, count: int) -> bytearray | None:
        """The frame that the bytes are which were just received, if they are one of usual length
        and the receiver was empty; it stays here until it is taken with `received`, or forgotten
        where the next bytes take its place."""
        if count < _LENGTH_BYTES + HEADER_BYTES_MIN:
            return None
        (length,) = _unpack_length(self.small)
        is_usual = length == count - _LENGTH_BYTES and length <= self.usual_bytes_max
        return self.small[_LENGTH_BYTES:count] if is_usual else None

    def received(self, count: int) -> None:
        """Hands every frame that is whole now to the taker."""
        large = self.large
        if large is not None and large.is_begun:
            large.received(count, self._clock())
            if large.is_whole:
                self.large = None
                frame = large.end()
                self._held.request_bytes += len(frame)
                self._taker.take_frame(frame)
            elif large.is_full:
                self._take_memory(large, self._grow_large)
            return
        if self._discarded_left:
            self._discard(count)
            return
        self.end += count
        was_filled = self.end == len(self.small)
        self._split()
        if was_filled and self.large is None:
            self._enlarge()

    def pause(self) -> None:
        """Nothing is read: the client is not to blame for what does not come."""
        if self.large is not None:
            self.large.progress.pause(self._clock())

    def resume(self) -> None:
        if self.large is not None:
            self.large.progress.resume(self._clock())

    def give_up(self) -> None:
        """The rest of a frame that has begun will not come."""
        large, self.large = self.large, None
        if large is not None:
            large.room.give_back()

    def end_all(self) -> None:
        """Nothing comes any more."""
        self.give_up()
        self._start = self.end = 0
        self.partial_since_s = 0.0
        self.shrink()

    def shrink(self) -> None:
        """Gives back the small buffer's memory where nothing is in it."""
        if self.end == 0 and len(self.small) > IDLE_BUFFER_BYTES:
            self._resize(IDLE_BUFFER_BYTES)

    # What a half-sent frame holds -------------------------------------------------------------

    @property
    def partial_bytes(self) -> int:
        """Memory that is held for the rest of a frame."""
        size = self.large.room.size_bytes if self.large is not None else 0
        return size + len(self.small) if self.partial_since_s else size

    def is_stalled(self, now_s: float) -> bool:
        """Whether the client does not send the rest of its frame. Asked while the node reads."""
        if self.large is not None:
            return self.large.progress.is_stalled(now_s)
        return self.partial_since_s > 0.0 and now_s - self.partial_since_s > STALL_S

    def frame_age_s(self, now_s: float) -> float:
        """How long ago the half-sent frame began; 0 if there is none."""
        if self.large is not None:
            return now_s - self.large.progress.began_s
        return now_s - self.partial_since_s if self.partial_since_s else 0.0

    def frame_bytes_per_s(self, now_s: float) -> float:
        """How fast it has come on average."""
        if self.large is not None:
            return self.large.progress.bytes_per_s(now_s)
        return (self.end - self._start) / max(self.frame_age_s(now_s), 1e-3)

    # ------------------------------------------------------------------------------------------

    def _split(self) -> None:
        """Takes every whole frame out of the small buffer; begins a large one where one starts."""
        began = self._start
        while self.end - self._start >= _LENGTH_BYTES and self._taker.may_begin():
            if self.waits_for_memory:
                return
            (length,) = _unpack_length(self.small, self._start)
            body = self._start + _LENGTH_BYTES
            if not HEADER_BYTES_MIN <= length <= self.usual_bytes_max:
                verdict = self._taker.judge(length, self.small_view[body : self.end])
                if verdict is Verdict.END:
                    return
                if verdict is Verdict.LATER:
                    break
                if verdict is Verdict.DISCARD:
                    self._discarded_left = length
                    self._start = body
                    self._discard(min(self.end - body, length))
                    continue
            if self.end - body >= length:
                self._start = body + length
                self._held.take_request(length)
                self._taker.take_frame(self.small[body : body + length])
                continue
            if length + _LENGTH_BYTES > _SMALL_BUFFER_BYTES:
                self.large = LargeFrame(self._held.share, length, self._clock())
                self._take_memory(self.large, self._begin_large, self.end - body)
                return
            if length + _LENGTH_BYTES > len(self.small):
                self._enlarge()
            break
        if self._start == self.end:
            self._start = self.end = 0
            self.partial_since_s = self._clock() if self._discarded_left else 0.0
        elif self._start != began or not self.partial_since_s:
            self.partial_since_s = self._clock()

    def _discard(self, count: int) -> None:
        """Throws away bytes: those at the start of the small buffer, or those that just came."""
        if self._start != self.end:
            self._start += count
        self._discarded_left -= count
        if self._discarded_left == 0:
            self.partial_since_s = 0.0
            self._taker.take_discarded()

    def _take_memory(self, large: LargeFrame, go_on: Callable[[], None], received: int = 0) -> None:
        """Goes on once there is memory for more of the large frame; reads nothing before."""
        if large.room.take_step(go_on, received, self._clock()):
            go_on()
        else:
            self.waits_for_memory = True
            self._taker.pause_reading()
            self._pressure.wake()

    def _begin_large(self) -> None:
        """Takes the frame at the start of the small buffer into one of its own."""
        assert self.large is not None
        body = self._start + _LENGTH_BYTES
        self.large.begin(self._buffers, self.small_view[body : self.end])
        self._start = self.end = 0
        self.partial_since_s = 0.0
        self.waits_for_memory = False
        self._taker.resume_reading()

    def _grow_large(self) -> None:
        assert self.large is not None
        self.large.grow()
        self.waits_for_memory = False
        self._taker.resume_reading()

    def _enlarge(self) -> None:
        size = len(self.small)
        if size < _SMALL_BUFFER_BYTES:
            self._resize(_SMALL_BUFFER_BYTES)
        elif size < _BUSY_BUFFER_BYTES and self._held.share.has_plenty:
            self._resize(_BUSY_BUFFER_BYTES)

    def _resize(self, size: int) -> None:
        self._held.set_buffer(size - IDLE_BUFFER_BYTES)
        self.small = resized(self.small, size)
        self.small_view = memoryview(self.small)

    def _compact(self) -> None:
        size = self.end - self._start
        self.small[:size] = self.small[self._start : self.end]
        self._start, self.end = 0, size
