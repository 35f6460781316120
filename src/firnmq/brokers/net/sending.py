"""Responses on their way out: parts of files become buffers that this process never reads.

A range is mapped and the mapping is handed to the transport, so the only copy is the one that the
kernel makes from the page cache into the socket. What a slow client has not taken yet stays in the
file: it costs a mapping, not memory. Design note 5 says why it is not `sendfile`.
"""

from __future__ import annotations

import asyncio
import os
from typing import TypeAlias

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer

Part: TypeAlias = Buffer | FileRange

_JOINED_BYTES_MAX = 16 * 1024
"""Answers up to this size are copied into one: cheaper than to hand over each by itself."""


def takes_ranges(transport: asyncio.BaseTransport) -> bool:
    """Whether a transport hands buffers to the kernel without looking into them.

    Looking into a mapping is not safe: a file that was truncated since would end the process, where
    the kernel merely fails the call and the client loses its connection. TLS looks, and so does
    asyncio's own transport, which copies what it could not send.
    """
    is_native = type(transport).__module__.partition(".")[0] == "uvloop"
    return is_native and transport.get_extra_info("sslcontext") is None


def buffers_of(parts: list[Part]) -> list[Buffer]:
    """What to hand to a transport that takes ranges, or the same list if it has none."""
    for part in parts:
        if isinstance(part, FileRange):
            return [part.mapped() if isinstance(part, FileRange) else part for part in parts]
    return parts  # type: ignore[return-value]


def send(transport: asyncio.Transport, descriptor: int, parts: list[Part], size: int) -> None:
    """Sends the parts of answers, which have `size` bytes together."""
    buffers = buffers_of(parts)
    if size <= _JOINED_BYTES_MAX:  # No range is so small.
        send_small(transport, descriptor, b"".join(buffers))
    else:
        transport.writelines(buffers)


def send_small(transport: asyncio.Transport | None, descriptor: int, data: bytes) -> None:
    """Sends a few bytes, past the transport if it has nothing to send before them.

    The transport would send them at the end of the event loop's turn, after everything else that
    the turn has to do. A descriptor of -1 leaves it to the transport.
    """
    if transport is None or transport.is_closing():
        return
    if descriptor >= 0 and transport.get_write_buffer_size() == 0:
        try:
            sent = os.write(descriptor, data)
        except OSError:  # The socket is full or closed: the transport notices as well.
            sent = 0
        if sent == len(data):
            return
        data = data[sent:]
    transport.write(data)
