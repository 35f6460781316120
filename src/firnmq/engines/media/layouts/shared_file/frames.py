"""The bytes of shared files: a file header, then frames. docs/formats/shared-file.md has the same
in prose.

A frame holds what one turn appended to one segment: whole batches. The CRC of its header begins
with the file's salt, which clients never see, so that no record can look like a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Frame
from firnmq.engines.shardlog.tail import chained
from firnmq.errors import OtherFormat
from firnmq.record import crc32c

VERSION = 1
_FILE_MAGIC = b"FIRNSHRD"
_FRAME_MAGIC = b"\xf1FRM"

_FILE = struct.Struct(
    ">"
    "8s"  # magic
    "H"  # version
    "H"  # lane that wrote it
    "I"  # CRC32C of all other fields
    "Q"  # number of the file
    "Q"  # salt
)
FILE_HEADER_BYTES = _FILE.size
assert FILE_HEADER_BYTES == 32

_FRAME = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # CRC32C of the file's salt and all that follows in this header
)
_FIELDS = struct.Struct(
    ">"
    "I"  # CRC32C of the batches
    "I"  # bytes of the batches
    "I"  # shard_uid
    "I"  # place of the segment: its number and its slot
    "Q"  # position of the first batch in the segment
    "B"  # kind
    "3x"
)
FRAME_HEADER_BYTES = _FRAME.size + _FIELDS.size
assert FRAME_HEADER_BYTES == 36
_SALT = struct.Struct(">Q")

SCAN_BYTES = 1024 * 1024
"""Read at once in a scan."""


_APPEND, _COPY = 1, 2
"""Kinds of frames. Others are damage."""


class FoundFrame(NamedTuple):
    """A frame in a file."""

    shard_uid: int
    place: int
    position: int
    length: int
    is_copy: bool
    file_position: int
    """Where its batches begin in the file."""
    is_whole: bool
    """Whether its batches have the CRC that they were written with."""

    @property
    def file_end(self) -> int:
        return self.file_position + self.length


class FileHeader(NamedTuple):
    lane: int
    number: int
    salt: int

    def pack(self) -> bytes:
        head = _FILE.pack(_FILE_MAGIC, VERSION, self.lane, 0, self.number, self.salt)
        return _FILE.pack(_FILE_MAGIC, VERSION, self.lane, crc32c(head), self.number, self.salt)


def parse_file_header(data: bytes, where: str) -> FileHeader | None:
    """None where the header was never written whole; OtherFormat if it is of another version."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, lane, crc, number, salt = _FILE.unpack_from(data)
    head = _FILE.pack(magic, version, lane, 0, number, salt)
    if magic != _FILE_MAGIC or crc32c(head) != crc:
        return None
    if version != VERSION:
        reason = f"is a shared file of version {version}, this program knows {VERSION}"
        raise OtherFormat(reason, where=where)
    return FileHeader(lane, number, salt)


def frame_header(frame: Frame, salt: int) -> bytes:
    add = crc32c_of if frame.is_copy else chained  # Buffers of a copy hold several batches.
    body_crc = 0
    for buffer in frame.buffers:
        body_crc = add(body_crc, buffer)
    kind = _COPY if frame.is_copy else _APPEND
    fields = _FIELDS.pack(
        body_crc, frame.length, frame.shard_uid, frame.place, frame.position, kind
    )
    return _FRAME.pack(_FRAME_MAGIC, crc32c(fields, crc32c(_SALT.pack(salt)))) + fields


def crc32c_of(crc: int, data: Buffer) -> int:
    """The CRC of more bytes, behind others of which it is known."""
    return crc32c(data, crc)


def scan_frames(read: Callable[[int, int], bytes], start: int, salt: int) -> Iterator[FoundFrame]:
    """Frames from the position on, which is the border of one. `read` gives up to so many bytes
    from a position; fewer at the end of the file.

    Passes over what is damaged: a frame whose batches are damaged is marked; where a header is
    damaged, the scan goes on at the next header that is good.
    """
    salt_crc = crc32c(_SALT.pack(salt))
    position = start
    chunk, chunk_position = b"", start
    while True:
        at = position - chunk_position
        if len(chunk) - at < FRAME_HEADER_BYTES:
            chunk, chunk_position, at = read(position, SCAN_BYTES), position, 0
            if len(chunk) < FRAME_HEADER_BYTES:
                return
        header = _header_at(chunk, at, salt_crc)
        if header is None:
            next_at = chunk.find(_FRAME_MAGIC, at + 1)
            # The magic may begin in this chunk and end in the next one.
            position = chunk_position + (
                next_at if next_at >= 0 else max(at + 1, len(chunk) - len(_FRAME_MAGIC) + 1)
            )
            continue
        body_crc, length, shard_uid, place, segment_position, kind = header
        body_at, body_position = at + FRAME_HEADER_BYTES, position + FRAME_HEADER_BYTES
        if len(chunk) - body_at < length:
            body = read(body_position, length)
        else:
            body = chunk[body_at : body_at + length]
        is_whole = len(body) == length and crc32c(body) == body_crc
        if len(body) == length:
            yield FoundFrame(
                shard_uid, place, segment_position, length, kind == _COPY, body_position, is_whole
            )
            position = body_position + length
        else:
            return  # The file ends within the frame.


def _header_at(chunk: bytes, at: int, salt_crc: int) -> tuple[int, ...] | None:
    magic, crc = _FRAME.unpack_from(chunk, at)
    if magic != _FRAME_MAGIC:
        return None
    fields = chunk[at + _FRAME.size : at + FRAME_HEADER_BYTES]
    return _FIELDS.unpack(fields) if crc32c(fields, salt_crc) == crc else None
