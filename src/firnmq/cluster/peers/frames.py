"""Frames between nodes: lengths, a small msgpack header, raw bytes. See docs/formats/peers.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from firnmq.disk.files import Buffer
from firnmq.errors import InvalidArgument

_PREFIX = struct.Struct(
    ">I"  # Bytes of the header.
    "I"  # Bytes of the body, which follows the header.
)
assert _PREFIX.size == 8
HEADER_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 160 * 1024 * 1024
"""More than the largest Kafka request, whose batches are forwarded one by one."""

T = TypeVar("T")


class FrameError(Exception):
    """The bytes of a connection are no frames of ours; the connection is closed."""


class RequestHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node asks of another one."""

    request_id: int
    """Chosen by the sender; the answer repeats it."""
    operation: str
    time_left_ms: int
    """How long the sender waits for the answer. A duration, because clocks differ."""
    arguments_bytes: int
    """The body begins with the arguments; raw bytes follow."""
    lane: str = ""
    """Requests of one lane begin in the order in which they were sent; empty: in any order."""


class MessageHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node tells another one, which does not answer."""

    request_id: int
    """0, which no request has."""
    operation: str
    time_left_ms: int
    """0."""
    arguments_bytes: int


class AnswerHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    request_id: int
    is_error: bool
    value_bytes: int
    """The body begins with the value, or the error; raw bytes follow."""


class Frame(NamedTuple):
    header: memoryview
    body: memoryview


def frame_parts(header: msgspec.Struct, body: Sequence[Buffer]) -> list[Buffer]:
    """A frame as the buffers to send, in order; InvalidArgument for one that is too large."""
    packed = msgspec.msgpack.encode(header)
    length = sum(map(len, body))
    if len(packed) > HEADER_BYTES_MAX or length > BODY_BYTES_MAX:
        raise InvalidArgument("message", f"{length:,} bytes are too many for another node")
    return [_PREFIX.pack(len(packed), length) + packed, *body]


def decode_header(frame: Frame, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(frame.header, type=kind)
    except msgspec.MsgspecError as error:
        raise FrameError(f"the header is damaged: {error}") from error


class FrameParser:
    """Splits received bytes into frames. Lengths are judged before memory is taken."""

    def __init__(
        self, *, header_bytes_max: int = HEADER_BYTES_MAX, body_bytes_max: int = BODY_BYTES_MAX
    ) -> None:
        self._header_bytes_max = header_bytes_max
        self._body_bytes_max = body_bytes_max
        self._received = bytearray()

    def trust(self) -> None:
        """Takes frames as large as nodes send: the other side has shown that it is one."""
        self._header_bytes_max, self._body_bytes_max = HEADER_BYTES_MAX, BODY_BYTES_MAX

    def feed(self, data: Buffer) -> list[Frame]:
        """The frames that the bytes complete; FrameError if they are no frames."""
        self._received += data
        whole = memoryview(self._received)
        found = []
        at = 0
        while len(whole) - at >= _PREFIX.size:
            header_length, body_length = _PREFIX.unpack_from(whole, at)
            if header_length > self._header_bytes_max or body_length > self._body_bytes_max:
                raise FrameError(
                    f"a frame announces {header_length:,} and {body_length:,} bytes, allowed are "
                    f"{self._header_bytes_max:,} and {self._body_bytes_max:,}"
                )
            body_at = at + _PREFIX.size + header_length
            end = body_at + body_length
            if len(whole) < end:
                break
            found.append(Frame(whole[at + _PREFIX.size : body_at], whole[body_at:end]))
            at = end
        if found:  # They keep the buffer; what follows them moves to another one.
            self._received = bytearray(whole[at:])
        return found
