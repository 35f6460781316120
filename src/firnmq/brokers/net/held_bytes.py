"""What one connection holds of the byte budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from firnmq.brokers.net.byte_budget import ByteBudget, ByteShare


class HeldBytes:
    """Bytes that are in memory already, counted in the share of the connection's client."""

    __slots__ = ("_work_bytes", "buffer_bytes", "request_bytes", "share")

    def __init__(self, share: ByteBudget | ByteShare) -> None:
        self.share = share
        self.request_bytes = 0
        """Whole requests that have not been answered."""
        self.buffer_bytes = 0
        """What the connection's buffer has beyond its first size."""
        self._work_bytes = 0
        """What a request that waits takes beside its own bytes."""

    def take_request(self, size: int) -> None:
        """Counts a request whose bytes were not counted while they came."""
        self.share.take(size)
        self.request_bytes += size

    def give_back_requests(self, size: int) -> None:
        self.request_bytes -= size
        self.share.give_back(size)

    @contextmanager
    def work(self, size: int) -> Iterator[None]:
        """Counts what a request takes beside its own bytes, until it has its answer."""
        self.share.take(size)
        self._work_bytes += size
        try:
            yield
        finally:
            self._work_bytes -= size
            self.share.give_back(size)

    def set_buffer(self, size: int) -> None:
        change, self.buffer_bytes = size - self.buffer_bytes, size
        if change > 0:
            self.share.take(change)
        else:
            self.share.give_back(-change)

    def move_to(self, share: ByteShare) -> None:
        size = self.request_bytes + self.buffer_bytes + self._work_bytes
        self.share.give_back(size)
        share.take(size)
        self.share = share
