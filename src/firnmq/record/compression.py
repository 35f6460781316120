"""The four codecs of RecordBatch v2, none of which can be made to take more memory than allowed.

Reading accepts what every Kafka client sends: gzip, snappy raw (librdkafka) and in xerial framing
(Java and the Python clients), lz4 frames and zstd frames with or without a content size. Writing
uses xerial framing for snappy, since every client reads it, and lz4 frames of independent blocks,
since Java's reader refuses linked ones. `check_framing` refuses what some client cannot read.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record.batch import DECOMPRESSED_BYTES_MAX, Buffer, Compression

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = struct.Struct(
    ">"
    "8s"  # 0   magic.
    "i"  # 8   version of the writer: 1.
    "i"  # 12  oldest version able to read it: 1.
)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
"""What Java's SnappyOutputStream puts into a block, and what readers are tuned for."""
_LENGTH: Final = struct.Struct(">I")

_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3
"""Both are the levels of Kafka's own clients."""

_GZIP_RATIO_MAX: Final = 1032
"""Deflate codes at most 258 bytes in two bits, so a larger declared size is a lie."""
_SNAPPY_RATIO_MAX: Final = 32
"""A copy element of three bytes yields 64; a larger declared size is a lie."""
_FIRST_GUESS_BYTES: Final = 64 * 1024
_GROWTH: Final = 4
"""A frame that does not say its size is tried with buffers of growing size. Four times each
keeps what is done in vain below a third of the useful work."""
_TOO_SMALL: Final = "write whole buffer"
"""Part of what cramjam says when the output buffer is full; it has no error type for that."""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

_GZIP_WINDOW: Final = 31
"""What zlib calls a gzip header and the largest window."""
_GZIP_PROBE_BYTES: Final = 4096
"""A gzip member with data has some of it in its first bytes."""
_LZ4_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic.
    "B"  # 4  flags.
    "B"  # 5  largest block.
)
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_CHECKSUM: Final = 0b0000_0100
_LZ4_CONTENT_SIZE: Final = 0b0000_1000
_LZ4_BLOCK_CHECKSUM: Final = 0b0001_0000
_LZ4_FIXED_FLAGS: Final = 0b1110_0011
_LZ4_VERSION_1_INDEPENDENT: Final = 0b0110_0000
_LZ4_STORED: Final = 0x8000_0000
"""Set in the length of a block that is not compressed."""
_LZ4_BLOCKS_MAX: Final = 65_536
"""A batch of the largest size has 2,048 blocks of the smallest size."""
_LITTLE_LENGTH: Final = struct.Struct("<I")


def compress(codec: Compression, payload: Buffer) -> Buffer:
    """`payload` compressed as Kafka clients expect it."""
    match codec:
        case Compression.NONE:
            return payload
        case Compression.GZIP:
            return memoryview(cramjam.gzip.compress(payload, level=_GZIP_LEVEL))
        case Compression.SNAPPY:
            return _xerial_compress(memoryview(payload))
        case Compression.LZ4:
            frame = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
            frame.compress(bytes(payload))
            return memoryview(frame.finish())
        case Compression.ZSTD:
            return memoryview(cramjam.zstd.compress(payload, level=_ZSTD_LEVEL))


def decompress(
    codec: Compression,
    payload: Buffer,
    *,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    space_before: int = 0,
) -> Buffer:
    """The records' bytes. LimitExceeded above `max_bytes`, InvalidRecord for anything else wrong.

    What was compressed comes with `space_before` bytes in front of it, for the caller to fill.
    No more than `max_bytes` of output is ever allocated. What decoders need for themselves comes
    on top: nothing for snappy, a few MiB at most for gzip and lz4, the frame's window for zstd,
    which is judged before decoding.
    """
    view = memoryview(payload)
    match codec:
        case Compression.NONE:
            if view.nbytes > max_bytes:
                raise LimitExceeded("batch payload", view.nbytes, max_bytes)
            return view
        case Compression.GZIP:
            return _grow_until_fits(
                "gzip",
                cramjam.gzip.decompress_into,
                view,
                _gzip_guess(view),
                max_bytes,
                space_before,
            )
        case Compression.SNAPPY:
            if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
                return _xerial_decompress(view, max_bytes, space_before)
            return _snappy_block(view, max_bytes, space_before)
        case Compression.LZ4:
            guess = max(_FIRST_GUESS_BYTES, _GROWTH * view.nbytes)
            return _grow_until_fits(
                "lz4", cramjam.lz4.decompress_into, view, guess, max_bytes, space_before
            )
        case Compression.ZSTD:
            return _grow_until_fits(
                "zstd",
                cramjam.zstd.decompress_into,
                view,
                _zstd_guess(view, max_bytes),
                max_bytes,
                space_before,
            )


def check_framing(codec: Compression, payload: Buffer, decompressed_bytes: int) -> None:
    """Refuses a payload that `decompress` reads but some Kafka client does not: InvalidRecord.

    Clients read one gzip member and one lz4 frame and stop, or fail; librdkafka ends the process
    at an empty member. Java refuses lz4 frames of linked blocks, and the Python clients take snappy
    blocks with other versions than 1 for raw ones. All clients read several zstd frames.
    """
    try:
        _check_framing(codec, memoryview(payload), decompressed_bytes)
    except (zlib.error, struct.error) as bad:
        raise InvalidRecord(f"{codec.name.lower()} data is damaged: {bad}") from bad


def _check_framing(codec: Compression, view: memoryview, decompressed_bytes: int) -> None:
    match codec:
        case Compression.GZIP:
            # The last four bytes are the size of the last member, which is less than all of the
            # data unless each member before it is empty.
            is_one = int.from_bytes(view[-4:], "little") == decompressed_bytes
            probe = zlib.decompressobj(_GZIP_WINDOW)
            if not (is_one and probe.decompress(view[:_GZIP_PROBE_BYTES], 1)):
                raise InvalidRecord("gzip data must be one member that is not empty")
        case Compression.SNAPPY:
            if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
                _, *versions = _XERIAL_HEADER.unpack_from(view)
                if versions != [1, 1]:
                    raise InvalidRecord(f"snappy data has xerial versions {versions}, not [1, 1]")
        case Compression.LZ4:
            _check_lz4(view)


def _check_lz4(view: memoryview) -> None:
    """Refuses anything but one frame of independent blocks; it has been decompressed before."""
    magic, flags, _ = _LZ4_HEADER.unpack_from(view)
    if magic != _LZ4_MAGIC:
        raise InvalidRecord("lz4 data must begin with a frame of data")
    if flags & _LZ4_FIXED_FLAGS != _LZ4_VERSION_1_INDEPENDENT:
        raise InvalidRecord("lz4 frame must have independent blocks and no dictionary")
    position = _LZ4_HEADER.size + 1 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    after_block = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    for _ in range(_LZ4_BLOCKS_MAX):
        (length,) = _LITTLE_LENGTH.unpack_from(view, position)
        position += _LITTLE_LENGTH.size
        if length == 0:
            break
        position += (length & ~_LZ4_STORED) + after_block
    else:
        raise InvalidRecord(f"lz4 frame has more than {_LZ4_BLOCKS_MAX:,} blocks")
    position += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
    if position != view.nbytes:
        raise InvalidRecord("lz4 data must be one frame with nothing after it")


_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytearray.restype = ctypes.py_object


def _uninitialised(size: int) -> bytearray:
    """A buffer to be written over. Unlike `bytearray(size)` it is not filled with zeros, which
    takes as long as some decoders do. Only bytes that were written may be returned."""
    made: bytearray = _new_bytearray(None, size)
    return made


def _grow_until_fits(
    name: str,
    decompress_into: Callable[[Buffer, memoryview], int],
    view: memoryview,
    guess: int,
    max_bytes: int,
    space_before: int,
) -> memoryview:
    """Decompress into a buffer that starts at `guess` and never grows beyond `max_bytes`."""
    size = min(max(guess, 1), max_bytes)
    while True:
        output = memoryview(_uninitialised(space_before + size))
        try:
            written = decompress_into(view, output[space_before:])
        except Exception as bad:
            # cramjam raises several types for bad input, all of which mean the same here.
            if _TOO_SMALL not in str(bad):
                raise InvalidRecord(f"{name} data is damaged: {bad}") from bad
        else:
            return output[: space_before + written]
        if size >= max_bytes:
            # The true size is unknown, and finding it out is what must not be done.
            raise LimitExceeded(f"{name} batch decompressed", size + 1, max_bytes)
        del output
        size = min(size * _GROWTH, max_bytes)


def _gzip_guess(view: memoryview) -> int:
    """The size in the gzip trailer, unless it cannot be true."""
    if view.nbytes < 18:
        return _FIRST_GUESS_BYTES
    declared = int.from_bytes(view[-4:], "little")
    return declared if 0 < declared <= view.nbytes * _GZIP_RATIO_MAX else _FIRST_GUESS_BYTES


def _zstd_guess(view: memoryview, max_bytes: int) -> int:
    """The content size of the first frame, or a guess; refuses a window above the limit."""
    unknown = max(_FIRST_GUESS_BYTES, _GROWTH * view.nbytes)
    if view.nbytes < 6 or bytes(view[:4]) != _ZSTD_MAGIC:
        return unknown
    descriptor = view[4]
    is_single_segment = bool(descriptor & 0x20)
    position = 5
    if not is_single_segment:
        exponent, mantissa = view[5] >> 3, view[5] & 7
        base = 1 << (10 + exponent)
        window = base + (base >> 3) * mantissa
        if window > max(max_bytes, 8 * 1024 * 1024):
            # Below 8 MiB every zstd decoder must work, whatever the caller's limit is.
            raise LimitExceeded("zstd window", window, max_bytes)
        position += 1
    position += (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    if size_bytes == 0 or view.nbytes < position + size_bytes:
        return unknown
    declared = int.from_bytes(view[position : position + size_bytes], "little")
    if size_bytes == 2:
        declared += 256
    if declared > max_bytes:
        raise LimitExceeded("zstd batch decompressed", declared, max_bytes)
    return declared


def _snappy_length(block: memoryview) -> int:
    """The decompressed size that a raw snappy block declares, if it can be true."""
    length = 0
    for index in range(min(5, block.nbytes)):
        length |= (block[index] & 0x7F) << (7 * index)
        if block[index] < 0x80:
            break
    else:
        raise InvalidRecord("snappy data is damaged: bad length")
    if length > block.nbytes * _SNAPPY_RATIO_MAX:
        raise InvalidRecord(f"snappy data is damaged: {length:,} bytes cannot be in it")
    return length


def _snappy_block(block: memoryview, max_bytes: int, space_before: int) -> memoryview:
    length = _snappy_length(block)
    if length > max_bytes:
        raise LimitExceeded("snappy batch decompressed", length, max_bytes)
    output = memoryview(_uninitialised(space_before + length))
    _snappy_into(block, output[space_before:])
    return output


def _snappy_into(block: memoryview, output: memoryview) -> None:
    try:
        written = cramjam.snappy.decompress_raw_into(block, output)
    except Exception as bad:
        raise InvalidRecord(f"snappy data is damaged: {bad}") from bad
    if written != output.nbytes:
        raise InvalidRecord("snappy data is damaged: shorter than declared")


def _xerial_decompress(view: memoryview, max_bytes: int, space_before: int) -> memoryview:
    """Blocks one after the other, each with its length in front; sizes are added up first."""
    blocks: list[tuple[memoryview, int]] = []
    total = 0
    position = _XERIAL_HEADER.size
    if view.nbytes < position:
        raise InvalidRecord("snappy data is damaged: xerial header is truncated")
    while position < view.nbytes:
        if view.nbytes - position < _LENGTH.size:
            raise InvalidRecord("snappy data is damaged: block length is truncated")
        (size,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if size > view.nbytes - position:
            raise InvalidRecord("snappy data is damaged: block runs past the end")
        block = view[position : position + size]
        position += size
        length = _snappy_length(block)
        total += length
        if total > max_bytes:
            raise LimitExceeded("snappy batch decompressed", total, max_bytes)
        blocks.append((block, length))
    output = memoryview(_uninitialised(space_before + total))
    written = space_before
    for block, length in blocks:
        _snappy_into(block, output[written : written + length])
        written += length
    return output


def _xerial_compress(view: memoryview) -> bytearray:
    output = bytearray(_XERIAL_HEADER.pack(XERIAL_MAGIC, 1, 1))
    for start in range(0, view.nbytes, _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES])
        output += _LENGTH.pack(len(block))
        output += memoryview(block)
    return output
