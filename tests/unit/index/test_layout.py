"""Bytes of index entries: they come back, and they sort as what they stand for."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.index import Checkpoint
from firnmq.index.layout import (
    PREFIX,
    TERM_BYTES_MAX,
    segment_range,
    shard_range,
    short_number,
    term,
    time_key,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@given(u64)
def test_short_numbers_come_back(number: int) -> None:
    assert int.from_bytes(short_number(number), "big") == number


@given(i64, u64, i64, u64)
def test_time_keys_sort_by_time_then_offset(time: int, at: int, time2: int, at2: int) -> None:
    assert (time_key(time, at) < time_key(time2, at2)) == ((time, at) < (time2, at2))


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_terms_are_bounded_and_tell_apart(raw: bytes, other: bytes) -> None:
    assert len(term(raw)) <= TERM_BYTES_MAX + 1
    assert (term(raw) == term(other)) == (raw == other)
    if len(raw) <= TERM_BYTES_MAX:
        assert term(raw) == raw


@given(st.integers(0, 2**32 - 3), u32, st.integers(0, 4), st.binary(max_size=20))
def test_every_entry_of_a_segment_is_in_its_range(
    uid: int, seq: int, kind: int, rest: bytes
) -> None:
    key = PREFIX.pack(uid, seq, kind) + rest
    lower, upper = segment_range(uid, seq)
    assert lower <= key < upper
    lower, upper = shard_range(uid)
    assert lower <= key < upper
    assert not key < shard_range(uid + 1)[0] <= key


@given(
    st.builds(
        Checkpoint,
        next_offset=u64,
        position=u64,
        crc=u32,
        max_timestamp=i64,
        records_since_point=u32,
        indexed_upto=u64,
        first_expiry_ms=i64,
    )
)
def test_checkpoints_come_back(checkpoint: Checkpoint) -> None:
    assert Checkpoint.unpack(checkpoint.pack()) == checkpoint
    assert Checkpoint.unpack(checkpoint.pack()[:40]) == dataclasses.replace(
        checkpoint, first_expiry_ms=0
    )


@pytest.mark.parametrize("size", [0, 1, 127, 128])
def test_a_long_term_is_never_a_short_one(size: int) -> None:
    assert term(b"x" * size) == b"x" * size
    assert len(term(b"x" * 129)) == 129
