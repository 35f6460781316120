"""One connection between two nodes as an event loop sees it: frames in, frames out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence

from firnmq.cluster.peers.certificates import TlsSide, fingerprint
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
        on_lost: Callable[[Wire, str], None],
        tls: TlsSide | None = None,
    ) -> None:
        """`on_made` is called once frames can be sent, over TLS after its handshake; `on_lost` once
        for every connection, made or not."""
        self.parser = parser
        self._on_made = on_made
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._tls = tls
        self._transport: asyncio.Transport | None = None
        self._reason = "the connection was closed"
        self._is_lost = False
        self._is_aborted = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._securing: asyncio.Task[None] | None = None
        self.peer = ""
        self.certificates = b""
        """Over TLS: fingerprints of the accepting side's certificate and of the other's."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else ""
        if self._is_aborted:
            transport.abort()
            return
        if self._tls is None:
            self._begin()
            return
        transport.pause_reading()  # What comes belongs to TLS.
        loop = asyncio.get_running_loop()
        self._securing = loop.create_task(self._secure(transport, self._tls))

    def _begin(self) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._on_made(self)

    async def _secure(self, transport: asyncio.Transport, tls: TlsSide) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(transport, self, tls.context, server_side=tls.is_server)
        except (OSError, TimeoutError) as error:
            self._lose(f"TLS: {_explained(error) or self._reason}")
            transport.abort()
            return
        finally:
            self._securing = None
        if self._is_lost or secured is None:
            self._lose(self._reason)
            transport.abort()
            return
        shown = secured.get_extra_info("ssl_object").getpeercert(binary_form=True)
        both = tls.fingerprint, fingerprint(shown)
        self.certificates = b"".join(both if tls.is_server else reversed(both))
        self._transport = secured
        self._begin()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self.parser.feed(data):
                self._on_frame(frame)
        except FrameError as error:
            self.abort(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        if self._securing is None:  # Otherwise the task knows better why.
            self._lose(str(error) if error is not None else self._reason)

    def _lose(self, reason: str) -> None:
        self._transport = None
        self._can_write.set()
        if not self._is_lost:
            self._is_lost = True
            self._on_lost(self, reason)

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

    @property
    def unsent_bytes(self) -> int:
        """What the other node has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

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
        """Ends the connection at once, or as soon as it is made; what was not sent is lost."""
        if not self._is_aborted and not self._is_lost:
            self._is_aborted = True
            self._reason = reason
            if self._transport is not None:
                self._transport.abort()


def _explained(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return str(error)
