"""Responses to one client, in order: buffers through the transport, file ranges past it.

A file range goes from the page cache to the socket by `sendfile`, which no transport of uvloop
offers, so it is called on a second descriptor of the same socket, and only while the transport has
nothing left to write. What a slow client has not taken yet stays in the file: it costs a
descriptor, not memory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import cast

from firnmq.brokers.kafka.protocol import FileRange, Part
from firnmq.eventlog import EventLogger

_TURN_BYTES_MAX = 1024 * 1024
"""Sent to one client before others get their turn of the event loop."""
_BUFFERS_MAX = 64
"""Handed to one system call."""

_log = EventLogger("kafka")


class ResponseSender:
    """What a connection hands its responses to. Owned by the event loop.

    `can_write` is cleared while the client takes less than it gets.
    """

    def __init__(self, transport: asyncio.Transport, can_write: asyncio.Event) -> None:
        self._transport = transport
        self._can_write = can_write
        self._loop = asyncio.get_running_loop()
        self._left: deque[Part] = deque()
        """What goes past the transport, from the first response with a range on."""
        self._turn: asyncio.Handle | None = None
        """The next time we send, if that is not up to the socket."""
        self._waits_for_transport = False
        self._waits_for_socket = False
        self._socket: socket.socket | None = None
        self.takes_ranges = _is_plain_tcp(transport)

    def send(self, parts: list[Part]) -> None:
        """Sends a response after those before it."""
        if not self._left and not any(isinstance(part, FileRange) for part in parts):
            self._transport.writelines(cast(Sequence[bytes], parts))
            return
        is_first = not self._left
        self._left.extend(parts)
        if not is_first:
            return
        if self._transport.get_write_buffer_size():
            self._waits_for_transport = True
            self._can_write.clear()
            self._transport.set_write_buffer_limits(high=0)  # It says so when it is done.
        else:
            self._send_turn()

    def transport_paused(self) -> None:
        self._can_write.clear()

    def transport_resumed(self) -> None:
        if self._waits_for_transport:
            self._waits_for_transport = False
            self._transport.set_write_buffer_limits()
            self._send_turn()
        elif not self._left:
            self._can_write.set()

    def close(self) -> None:
        """The client is gone, and with it what it has not taken."""
        self._left.clear()
        if self._turn is not None:
            self._turn.cancel()
        if self._socket is not None:
            self._wait_for_socket(False)
            self._socket.close()
            self._socket = None
        self._can_write.set()

    def _send_turn(self) -> None:
        """Sends until the client has had its turn, takes no more, or has everything."""
        self._turn = None
        room = _TURN_BYTES_MAX
        try:
            while self._left and room > 0:
                room -= self._send_some(room)
        except BlockingIOError:
            self._wait_for_socket(True)
            self._can_write.clear()
            return
        except (OSError, EOFError) as error:
            _log.info("connection_closed", reason=f"sending failed: {error}")
            self._left.clear()
            self._wait_for_socket(False)
            self._transport.abort()
            return
        if not self._left:
            self._wait_for_socket(False)
            self._can_write.set()
        elif not self._waits_for_socket:
            self._can_write.clear()
            self._turn = self._loop.call_soon(self._send_turn)

    def _send_some(self, room: int) -> int:
        """One system call; returns how many bytes went out."""
        if self._socket is None:
            self._socket = _second_socket(self._transport)
        first = self._left[0]
        if isinstance(first, FileRange):
            size = min(first.size_bytes, room)
            sent = os.sendfile(self._socket.fileno(), first.fd, first.position, size)
            if sent == 0:
                raise EOFError("the file is shorter than it was")
            self._left.popleft()
            if sent < first.size_bytes:
                self._left.appendleft(_rest(first, sent))
            return sent
        buffers: list[bytes | bytearray | memoryview] = []
        has_more = False
        for part in self._left:
            has_more = isinstance(part, FileRange) or len(buffers) == _BUFFERS_MAX
            if isinstance(part, FileRange) or has_more:
                break
            buffers.append(part)
        # More follows at once, so that the head of a response is no packet of its own.
        sent = self._socket.sendmsg(buffers, (), socket.MSG_MORE if has_more else 0)
        self._take_buffers(sent)
        return sent

    def _take_buffers(self, sent: int) -> None:
        left = self._left
        while left and not isinstance(part := left[0], FileRange) and len(part) <= sent:
            sent -= len(part)
            left.popleft()
        if sent:
            part = left[0]
            assert not isinstance(part, FileRange)
            left[0] = memoryview(part)[sent:]

    def _wait_for_socket(self, wanted: bool) -> None:
        if wanted is self._waits_for_socket or self._socket is None:
            return
        self._waits_for_socket = wanted
        if wanted:
            self._loop.add_writer(self._socket.fileno(), self._send_turn)
        else:
            self._loop.remove_writer(self._socket.fileno())


def _rest(part: FileRange, sent: int) -> FileRange:
    return FileRange(
        fd=part.fd,
        position=part.position + sent,
        size_bytes=part.size_bytes - sent,
        held=part.held,
    )


def _is_plain_tcp(transport: asyncio.Transport) -> bool:
    has_socket = transport.get_extra_info("socket") is not None
    return has_socket and transport.get_extra_info("sslcontext") is None


def _second_socket(transport: asyncio.Transport) -> socket.socket:
    """The transport's socket under another descriptor, which the loop lets us wait for."""
    first = transport.get_extra_info("socket")
    second = socket.socket(first.family, first.type, first.proto, os.dup(first.fileno()))
    second.setblocking(False)
    return second
