"""One connection between two nodes as an event loop sees it: frames in, frames out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from firnmq.cluster.peers.frames import Frame, FrameError, FrameParser
from firnmq.disk.files import Buffer

WRITE_BUFFER_BYTES = 4 * 1024 * 1024
"""Beyond it the sender waits until the other node has taken some."""


class Wire(asyncio.Protocol):
    """Owned by its event loop."""

    def __init__(
        self,
        parser: FrameParser,
        on_made: Callable[[Wire], None],
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.parser = parser
        self._on_made = on_made
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reason = "the connection was closed"
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else ""
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self.parser.feed(data):
                self._on_frame(frame)
        except FrameError as error:
            self.abort(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._can_write.set()
        self._on_lost(str(error) if error is not None else self._reason)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_room(self) -> bool:
        return self._can_write.is_set()

    async def wait_room(self) -> None:
        """Returns once what is sent does not pile up, or when the connection is lost."""
        await self._can_write.wait()

    def send(self, parts: Sequence[Buffer]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self, reason: str) -> None:
        """Ends the connection at once; what was not sent is lost."""
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()
