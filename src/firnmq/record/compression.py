"""The four codecs of RecordBatch v2, none of which can be made to take more memory than allowed.

Reading accepts what every Kafka client sends: gzip, snappy raw (librdkafka) and in xerial framing
(Java and the Python clients), lz4 frames and zstd frames with or without a content size. Writing
uses xerial framing for snappy, since every client reads it, and lz4 frames of independent blocks,
since Java's reader refuses linked ones.
"""

from __future__ import annotations

import ctypes
import struct
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
    codec: Compression, payload: Buffer, *, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Buffer:
    """The records' bytes. LimitExceeded above `max_bytes`, InvalidRecord for anything else wrong.

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
                "gzip", cramjam.gzip.decompress_into, view, _gzip_guess(view), max_bytes
            )
        case Compression.SNAPPY:
            if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
                return _xerial_decompress(view, max_bytes)
            return _snappy_block(view, max_bytes)
        case Compression.LZ4:
            guess = max(_FIRST_GUESS_BYTES, _GROWTH * view.nbytes)
            return _grow_until_fits("lz4", cramjam.lz4.decompress_into, view, guess, max_bytes)
        case Compression.ZSTD:
            return _grow_until_fits(
                "zstd", cramjam.zstd.decompress_into, view, _zstd_guess(view, max_bytes), max_bytes
            )


_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytearray.restype = ctypes.py_object


def _room(size: int) -> bytearray:
    """To be written over: unlike `bytearray(size)` it is not filled with zeros, which would take as
    long as some decoders do. Only what was written may be given out."""
    made: bytearray = _new_bytearray(None, size)
    return made


def _grow_until_fits(
    name: str,
    decompress_into: Callable[[Buffer, bytearray], int],
    view: memoryview,
    guess: int,
    max_bytes: int,
) -> memoryview:
    """Decompress into a buffer that starts at `guess` and never grows beyond `max_bytes`."""
    size = min(max(guess, 1), max_bytes)
    while True:
        output = _room(size)
        try:
            written = decompress_into(view, output)
        except Exception as bad:
            # cramjam raises several types for bad input, all of which mean the same here.
            if _TOO_SMALL not in str(bad):
                raise InvalidRecord(f"{name} data is damaged: {bad}") from bad
        else:
            return memoryview(output)[:written]
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


def _snappy_block(block: memoryview, max_bytes: int) -> memoryview:
    length = _snappy_length(block)
    if length > max_bytes:
        raise LimitExceeded("snappy batch decompressed", length, max_bytes)
    output = _room(length)
    _snappy_into(block, memoryview(output))
    return memoryview(output)


def _snappy_into(block: memoryview, output: memoryview) -> None:
    try:
        written = cramjam.snappy.decompress_raw_into(block, output)
    except Exception as bad:
        raise InvalidRecord(f"snappy data is damaged: {bad}") from bad
    if written != output.nbytes:
        raise InvalidRecord("snappy data is damaged: shorter than declared")


def _xerial_decompress(view: memoryview, max_bytes: int) -> memoryview:
    """Blocks one after the other, each with its length in front; sizes are added up first."""
    blocks: list[tuple[memoryview, int]] = []
    total = 0
    position = _XERIAL_HEADER.size
    if view.nbytes < position:
        raise InvalidRecord("snappy data is damaged: xerial header cut short")
    while position < view.nbytes:
        if view.nbytes - position < _LENGTH.size:
            raise InvalidRecord("snappy data is damaged: block length cut short")
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
    output = memoryview(_room(total))
    written = 0
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
