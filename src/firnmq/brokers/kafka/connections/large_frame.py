"""A frame that is too large for a connection's small buffer, while its bytes come."""

from __future__ import annotations

from firnmq.brokers.net.byte_budget import ByteBudget, ByteShare, FrameRoom
from firnmq.brokers.net.client_progress import SendProgress
from firnmq.brokers.net.frame_buffers import FrameBuffers, resized

_RECEIVE_BYTES_MAX = 1024 * 1024
"""Received at once. The event loop fills a buffer up to 32 times before others have their turn."""


class LargeFrame:
    """One frame. It has a buffer once there is memory for its first step."""

    __slots__ = ("_buffer", "_filled", "_length", "progress", "room")

    def __init__(self, budget: ByteBudget | ByteShare, length: int, now_s: float) -> None:
        self._length = length
        self._buffer: bytearray | None = None
        self._filled = 0
        self.room = FrameRoom(budget, length)
        self.progress = SendProgress(now_s)

    @property
    def is_begun(self) -> bool:
        return self._buffer is not None

    @property
    def is_whole(self) -> bool:
        return self._filled == self._length

    @property
    def is_full(self) -> bool:
        """Whether the buffer has no room for the bytes that are still to come."""
        return self._buffer is not None and self._filled == len(self._buffer)

    def begin(self, buffers: FrameBuffers, first: memoryview) -> None:
        """Takes the bytes that have come already."""
        self._buffer = buffers.take(self.room.size_bytes)
        self._filled = len(first)
        self._buffer[: self._filled] = first

    def grow(self) -> None:
        """More memory was granted."""
        assert self._buffer is not None
        self._buffer = resized(self._buffer, self.room.size_bytes)

    def vacant(self) -> memoryview:
        """Where the next bytes go."""
        assert self._buffer is not None
        return memoryview(self._buffer)[self._filled :][:_RECEIVE_BYTES_MAX]

    def received(self, count: int, now_s: float) -> None:
        self._filled += count
        self.progress.received(count, now_s)

    def end(self) -> bytearray:
        """The whole frame; its bytes are given back when it is answered."""
        assert self._buffer is not None
        assert self.is_whole
        self.room.end()
        return self._buffer
