"""Batches without some of their records: what stays is exactly what was there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.record import (
    Compression,
    NewRecord,
    Record,
    crc32c,
    decode,
    empty_batch,
    encode,
    filtered,
    parse_header,
    unpacked,
    walk,
    with_header,
)
from firnmq.record.batch import (
    ATTRIBUTE_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    CRC_START,
    HEADER_BYTES,
)

BASE = 1_000


def batch_of(count: int, codec: Compression = Compression.NONE) -> bytes:
    records = [
        NewRecord(
            key=None if at % 4 == 0 else b"key" * at,
            value=None if at % 3 == 0 else bytes(range(at % 256)) * 3,
            headers=(("h", b"%d" % at), ("null", None)) if at % 2 else (),
            timestamp_ms=5_000_000 - 70 * at + at * at,
        )
        for at in range(count)
    ]
    return bytes(
        encode(
            records,
            now_ms=0,
            base_offset=BASE,
            leader_epoch=9,
            compression=codec,
            producer_id=3,
            producer_epoch=2,
            base_sequence=77,
        )
    )


def records_of(batch: bytes | bytearray) -> list[Record]:
    return decode([batch]).records()


@pytest.mark.parametrize("codec", list(Compression))
@given(kept=st.sets(st.integers(0, 39)))
def test_what_is_kept_is_the_same_and_nothing_else_is_there(
    codec: Compression, kept: set[int]
) -> None:
    batch = batch_of(40, codec)
    offsets = {BASE + at for at in kept}
    wanted = [record for record in records_of(batch) if record.offset in offsets]
    made = filtered(batch, offsets)
    assert records_of(made) == wanted
    old, new = parse_header(batch), parse_header(made)
    newest = max((record.timestamp_ms for record in wanted), default=old.max_timestamp)
    codec_now = old.attributes if wanted else 0
    assert new == old._replace(
        batch_length=len(made) - 12,
        crc=crc32c(made[CRC_START:]),
        record_count=len(wanted),
        max_timestamp=newest,
        attributes=codec_now,
    )
    assert walk(made, expected_offset=BASE).reason is None


def test_filtering_twice_is_filtering_once() -> None:
    batch = batch_of(30)
    once = filtered(filtered(batch, range(BASE, BASE + 20)), range(BASE + 5, BASE + 30))
    assert once == filtered(batch, range(BASE + 5, BASE + 20))


def test_append_time_and_transactions_stay() -> None:
    batch = bytearray(batch_of(5))
    header = parse_header(batch)
    flags = ATTRIBUTE_APPEND_TIME | ATTRIBUTE_TRANSACTIONAL
    with_header(batch, header._replace(attributes=flags, max_timestamp=123))
    made = parse_header(filtered(batch, {BASE + 1}))
    assert (made.attributes, made.max_timestamp) == (flags, 123)
    assert [record.timestamp_ms for record in records_of(filtered(batch, {BASE + 1}))] == [123]


@pytest.mark.parametrize("codec", list(Compression))
def test_unpacked_has_the_same_records(codec: Compression) -> None:
    batch = batch_of(20, codec)
    plain = unpacked(batch)
    assert decode([plain], verify=False).records() == records_of(batch)
    assert parse_header(plain).compression is Compression.NONE
    assert (plain is batch) == (codec is Compression.NONE)


def test_an_empty_batch_takes_readers_past_offsets() -> None:
    batch = empty_batch(7, 2_000_000_000)
    assert len(batch) == HEADER_BYTES
    (entry,) = walk(batch, expected_offset=7).headers
    assert (entry.last_offset, entry.record_count) == (2_000_000_000, 0)
    assert decode([batch]).next_offset == 2_000_000_001
