import gzip
import os
import struct
import subprocess
import sys
import tracemalloc

import cramjam
import pytest

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record import Compression, compress, decompress
from firnmq.record.compression import XERIAL_MAGIC, check_framing

MIB = 1024 * 1024
PACKED = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"".join(b"line %d of many\n" % number for number in range(10_000))


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("payload", [b"x", b"abc" * 7, TEXT, bytes(300_000)])
def test_what_is_compressed_comes_back(codec: Compression, payload: bytes) -> None:
    packed = compress(codec, payload)
    assert bytes(decompress(codec, packed)) == payload
    assert bytes(decompress(codec, memoryview(bytes(packed)))) == payload
    assert bytes(decompress(codec, packed, max_bytes=len(payload))) == payload
    with pytest.raises(LimitExceeded):
        decompress(codec, packed, max_bytes=len(payload) - 1)


def test_snappy_is_read_raw_and_framed() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert bytes(decompress(Compression.SNAPPY, raw)) == TEXT
    framed = bytes(compress(Compression.SNAPPY, TEXT))
    assert framed.startswith(XERIAL_MAGIC)
    assert bytes(decompress(Compression.SNAPPY, framed)) == TEXT


def test_lz4_is_written_in_independent_blocks() -> None:
    flags = bytes(compress(Compression.LZ4, TEXT))[4]
    assert flags >> 6 == 1
    assert flags & 0b10_0000


def test_zstd_is_read_with_and_without_content_size() -> None:
    stream = cramjam.zstd.Compressor(level=3)
    stream.compress(TEXT)
    without = bytes(stream.finish())
    assert bytes(decompress(Compression.ZSTD, without)) == TEXT
    assert bytes(decompress(Compression.ZSTD, bytes(cramjam.zstd.compress(TEXT)))) == TEXT


def test_gzip_of_several_members_is_read() -> None:
    packed = gzip.compress(TEXT) + gzip.compress(TEXT)
    assert bytes(decompress(Compression.GZIP, packed)) == TEXT + TEXT


SKIPPED = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip"
LZ4_LINKED = bytes(cramjam.lz4.compress(TEXT))
UNCOMMON = {
    "gzip members": (Compression.GZIP, gzip.compress(TEXT) + gzip.compress(TEXT)),
    "gzip, first member empty": (Compression.GZIP, gzip.compress(b"") + gzip.compress(TEXT)),
    "gzip, last member empty": (Compression.GZIP, gzip.compress(TEXT) + gzip.compress(b"")),
    "lz4 frames": (Compression.LZ4, bytes(compress(Compression.LZ4, TEXT)) * 2),
    "lz4, linked blocks": (Compression.LZ4, LZ4_LINKED),
    "lz4, bytes to be skipped first": (Compression.LZ4, SKIPPED + LZ4_LINKED),
    "lz4, bytes to be skipped last": (
        Compression.LZ4,
        bytes(compress(Compression.LZ4, TEXT)) + SKIPPED,
    ),
    "xerial versions": (
        Compression.SNAPPY,
        XERIAL_MAGIC + struct.pack(">ii", 2, 1) + bytes(compress(Compression.SNAPPY, TEXT))[16:],
    ),
}


@pytest.mark.parametrize("what", UNCOMMON)
def test_what_some_client_cannot_read_is_refused(what: str) -> None:
    codec, packed = UNCOMMON[what]
    plain = decompress(codec, packed)
    with pytest.raises(InvalidRecord):
        check_framing(codec, packed, len(plain))


@pytest.mark.parametrize("payload", [b"x", b"abc" * 7, TEXT, bytes(300_000), os.urandom(300_000)])
@pytest.mark.parametrize("codec", PACKED)
def test_what_every_client_reads_is_not(codec: Compression, payload: bytes) -> None:
    check_framing(codec, compress(codec, payload), len(payload))
    check_framing(Compression.GZIP, gzip.compress(payload, 1), len(payload))
    check_framing(Compression.SNAPPY, cramjam.snappy.compress_raw(payload), len(payload))
    frame = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    frame.compress(payload)
    check_framing(Compression.LZ4, bytes(frame.finish()), len(payload))


def test_an_lz4_frame_has_a_limit_of_blocks() -> None:
    block = struct.pack("<I", 0x80000001) + b"x" + bytes(4)  # With a checksum.
    head, end = bytes(compress(Compression.LZ4, b"x"))[:7], bytes(4)
    check_framing(Compression.LZ4, head + block * 1_000 + end, 1_000)
    with pytest.raises(InvalidRecord, match="blocks"):
        check_framing(Compression.LZ4, head + block * 70_000 + end, 70_000)


@pytest.mark.parametrize("codec", PACKED)
def test_damage_is_an_invalid_record(codec: Compression) -> None:
    packed = bytes(compress(codec, TEXT))
    for damaged in (b"", b"\xff", b"junk" * 10, packed[:-3], packed[: len(packed) // 2]):
        with pytest.raises(InvalidRecord):
            decompress(codec, damaged)


@pytest.mark.parametrize(
    "framed",
    [
        XERIAL_MAGIC,
        XERIAL_MAGIC + bytes(7),
        XERIAL_MAGIC + bytes(8) + b"\0\0",
        XERIAL_MAGIC + bytes(8) + struct.pack(">I", 5) + b"abc",
        XERIAL_MAGIC + bytes(8) + struct.pack(">I", 0),
        XERIAL_MAGIC + bytes(8) + struct.pack(">i", -1) + b"abc",
    ],
)
def test_bad_xerial_framing_is_an_invalid_record(framed: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decompress(Compression.SNAPPY, framed)


@pytest.mark.parametrize(
    "lie",
    [
        b"\xff\xff\xff\xff\x07" + bytes(20),  # A raw snappy block of 2 GiB.
        b"\xff\xff\xff\xff\xff\xff",  # A length that never ends.
        XERIAL_MAGIC + bytes(8) + struct.pack(">I", 9) + b"\xff\xff\xff\xff\x07" + bytes(4),
    ],
)
def test_a_declared_length_is_judged_before_memory_is_taken(lie: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecord):
            decompress(Compression.SNAPPY, lie)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_a_declared_zstd_size_or_window_is_judged_before_memory_is_taken() -> None:
    # A frame header with an 8 byte content size of 2^40, and one with a window of 2^41.
    sized = b"\x28\xb5\x2f\xfd" + bytes([0b1110_0000]) + (1 << 40).to_bytes(8, "little") + b"\0" * 8
    windowed = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([31 << 3]) + b"\0" * 8
    for lie in (sized, windowed):
        with pytest.raises(LimitExceeded):
            decompress(Compression.ZSTD, lie)


def bomb(codec: Compression) -> bytes:
    """A GiB of zeros, made of 64 times the same 16 MiB where frames can be put in a row."""
    zeros = bytes(16 * MIB)
    if codec is Compression.SNAPPY:
        framed = bytes(compress(codec, zeros))
        return framed[:16] + framed[16:] * 64
    return bytes(compress(codec, zeros)) * 64


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_allocates_no_more_than_the_limit(codec: Compression) -> None:
    packed = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded):
            decompress(codec, packed, max_bytes=4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * MIB + len(packed) // 10


def test_bombs_do_not_grow_the_process() -> None:
    """What the libraries allocate by themselves is seen only from outside."""
    program = """
import resource
from firnmq.errors import LimitExceeded
from firnmq.record import Compression, decompress
from tests.unit.record.test_compression import PACKED, bomb

bombs = [(codec, bomb(codec)) for codec in PACKED]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, packed in bombs:
    try:
        decompress(codec, packed, max_bytes=128 * 1024 * 1024)
    except LimitExceeded:
        continue
    raise SystemExit(f"{codec!r} was not refused")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    grown_kib = int(done.stdout)
    assert grown_kib < 160 * 1024
