"""CRCs of joined bytes from the CRCs of their parts."""

import random
from types import ModuleType

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from firnmq.errors import InvalidArgument
from firnmq.record import NewRecord
from tests.unit.record import codec_forms


@given(st.binary(max_size=2_000), st.binary(max_size=2_000))
def test_the_crc_of_joined_bytes(first: bytes, second: bytes) -> None:
    for codec in codec_forms.forms():
        combined = codec.combine_crc(crc32c(first), crc32c(second), len(second))
        assert combined == crc32c(first + second)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 65_535, 65_536, 65_537, 16_777_217])
def test_lengths_around_the_borders_of_the_tables(codec: ModuleType, length: int) -> None:
    first, second = b"in front", random.Random(length).randbytes(length)
    combined = codec.combine_crc(crc32c(first), crc32c(second), length)
    assert combined == crc32c(second, crc32c(first))


@pytest.mark.parametrize("doublings", [28, 31, 32, 40, 63, 100])
def test_lengths_that_nobody_can_make(codec: ModuleType, doublings: int) -> None:
    """Joining a string to itself again and again gives the CRC of a huge one in two ways."""
    piece = b"0123456789abcdef"
    by_doubling, tail, length = crc32c(piece), 0, len(piece)
    for _ in range(doublings):
        tail = codec.combine_crc(tail, by_doubling, length)
        by_doubling = codec.combine_crc(by_doubling, by_doubling, length)
        length *= 2
    # All the halves before the last one, with one piece in front, are the whole again.
    whole = codec.combine_crc(crc32c(piece), tail, length - len(piece))
    assert whole == by_doubling


@pytest.mark.parametrize("first", [-1, 2**32])
def test_what_is_no_crc_is_refused(codec: ModuleType, first: int) -> None:
    with pytest.raises(InvalidArgument):
        codec.combine_crc(first, 0, 1)
    with pytest.raises(InvalidArgument):
        codec.combine_crc(0, first, 1)
    with pytest.raises(InvalidArgument):
        codec.chain_batch_crc(first, codec.encode([NewRecord(value=b"v")], now_ms=0))


def test_a_negative_length_is_refused(codec: ModuleType) -> None:
    with pytest.raises(InvalidArgument):
        codec.combine_crc(0, 0, -1)


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_a_chain_of_batches(codec: ModuleType, form: type) -> None:
    numbers = random.Random(1)
    chained, log = 0, b""
    for size in [0, 1, 17, 195, 196, 300, 4_096, 70_000, *numbers.choices(range(3_000), k=20)]:
        batch = codec.encode(
            [NewRecord(value=numbers.randbytes(size))],
            now_ms=0,
            base_offset=numbers.randrange(2**40),
            leader_epoch=numbers.randrange(2**31),
        )
        log += batch
        chained = codec.chain_batch_crc(chained, form(batch))
        assert chained == crc32c(log)


def test_a_chain_takes_the_batch_at_its_word(codec: ModuleType) -> None:
    batch = codec.encode([NewRecord(value=b"v")], now_ms=0)
    changed = bytes(batch[:-2]) + b"w" + bytes(batch[-1:])
    assert codec.chain_batch_crc(5, changed) == crc32c(batch, 5) != crc32c(changed, 5)


def test_less_than_a_header_is_refused(codec: ModuleType) -> None:
    with pytest.raises(InvalidArgument):
        codec.chain_batch_crc(0, bytes(60))
