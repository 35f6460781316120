import pytest

from firnmq.errors import InvalidRecord
from firnmq.record import (
    HEADER_BYTES,
    PREFIX_BYTES,
    BatchHeader,
    Compression,
    parse_header,
    patch_base,
    patched_prefix,
    validate_header,
)
from tests.unit.record.batches import made, record

FIELDS = BatchHeader(
    base_offset=7,
    batch_length=49,
    leader_epoch=3,
    magic=2,
    crc=0xDEADBEEF,
    attributes=0b11_1100,
    last_offset_delta=9,
    base_timestamp=-1,
    max_timestamp=2**62,
    producer_id=12,
    producer_epoch=-1,
    base_sequence=2**31 - 1,
    record_count=10,
)


def test_a_header_survives_its_bytes() -> None:
    packed = FIELDS.pack()
    assert len(packed) == HEADER_BYTES
    assert parse_header(packed) == FIELDS
    assert parse_header(b"??" + packed, 2) == FIELDS
    assert parse_header(memoryview(packed)) == FIELDS


def test_what_follows_from_the_fields() -> None:
    assert FIELDS.size_bytes == 61
    assert FIELDS.last_offset == 16
    assert FIELDS.next_offset == 17
    assert FIELDS.compression is Compression.ZSTD
    assert FIELDS.is_append_time
    assert FIELDS.is_transactional
    assert FIELDS.is_control
    plain = FIELDS._replace(attributes=0)
    assert plain.compression is Compression.NONE
    assert not plain.is_append_time
    assert not plain.is_transactional
    assert not plain.is_control


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(InvalidRecord):
        _ = FIELDS._replace(attributes=5).compression


@pytest.mark.parametrize("position", [-1, 1, 61, 1000])
def test_a_header_needs_its_bytes(position: int) -> None:
    with pytest.raises(InvalidRecord):
        parse_header(FIELDS.pack(), position)
    with pytest.raises(InvalidRecord):
        patch_base(bytearray(FIELDS.pack()), position, 0, 0)


def test_a_prefix_needs_a_whole_header() -> None:
    with pytest.raises(InvalidRecord):
        patched_prefix(FIELDS.pack()[:60], 0, 0)


def test_patching_leaves_everything_else_and_the_crc_valid() -> None:
    batch = made(record(0), record(1))
    patched = bytearray(b"xx" + batch)
    patch_base(patched, 2, 1_000, 5)
    assert patched[:2] == b"xx"
    header = validate_header(patched[2:])
    assert (header.base_offset, header.leader_epoch) == (1_000, 5)
    assert patched[2 + PREFIX_BYTES :] == batch[PREFIX_BYTES:]


def test_a_patched_prefix_makes_the_same_bytes_without_writing_to_the_batch() -> None:
    batch = made(record(0), record(1))
    patched = bytearray(batch)
    patch_base(patched, 0, 1_000, 5)
    prefix = patched_prefix(batch, 1_000, 5)
    assert len(prefix) == PREFIX_BYTES
    assert prefix + batch[PREFIX_BYTES:] == patched
    assert parse_header(batch).at(1_000, 5) == parse_header(patched)
