from types import ModuleType

import pytest

from firnmq.errors import Corruption, InvalidRecord
from firnmq.record import Compression, NewRecord
from tests.unit.record.batches import made, record
from tests.unit.record.test_decode import BAD


@pytest.mark.parametrize("compression", list(Compression))
def test_newest_offset_per_key_and_all_offsets_per_tag(
    codec: ModuleType, compression: Compression
) -> None:
    batch = made(
        record(0, key=b"a", headers=[(b"tag", b"x"), (b"tag", b"y"), (b"tag", b"x")]),
        record(1, key=b"b", headers=[(b"other", b"z"), (b"tag", None)]),
        record(2, key=None, headers=[(b"tag", b"x")]),
        record(5, key=b"a", headers=[(b"label", b"x")]),
        record(6, key=b""),
        base_offset=300,
        last_offset_delta=9,
        compression=compression,
    )
    terms = codec.collect(batch, tag_headers=(b"tag", b"label"))
    assert terms.keys == {b"a": 305, b"b": 301, b"": 306}
    assert terms.tags == {b"x": [300, 302, 305], b"y": [300]}
    assert codec.collect(batch, tag_headers=()).tags == {}


def test_large_offsets(codec: ModuleType) -> None:
    batch = made(record(0, headers=[(b"tag", b"x"), (b"tag", b"x")]), base_offset=2**61)
    assert codec.collect(batch).tags == {b"x": [2**61]}


def test_control_batches_have_no_terms(codec: ModuleType) -> None:
    terms = codec.collect(made(record(0, key=b"k"), attributes=0x20))
    assert (terms.keys, terms.tags) == ({}, {})


def test_only_the_first_batch_is_looked_at(codec: ModuleType) -> None:
    batch = made(record(0, key=b"k"))
    assert codec.collect(batch + b"anything").keys == {b"k": 0}


@pytest.mark.parametrize("what", [what for what in BAD if not what.startswith("timestamp")])
def test_bad_bytes_are_refused(codec: ModuleType, what: str) -> None:
    with pytest.raises(Corruption):
        codec.collect(BAD[what])
    with pytest.raises(InvalidRecord):
        codec.collect(BAD[what], source="client")


def test_the_crc_is_checked_on_request(codec: ModuleType) -> None:
    damaged = bytearray(made(record(0, key=b"key")))
    damaged[-4] ^= 1
    assert len(codec.collect(damaged).keys) == 1
    with pytest.raises(Corruption, match="crc"):
        codec.collect(damaged, verify=True)


def test_more_tags_than_are_remembered(codec: ModuleType) -> None:
    """Tags of the same length and last byte push each other out, and all are still found."""
    names = ["", *(f"{number:03d}{letter}" for number in range(40) for letter in "ab")]
    records = [
        NewRecord(value=b"v", tags=(names[number % 81], names[number * 7 % 81], ""))
        for number in range(400)
    ]
    expected: dict[bytes, list[int]] = {}
    for number, made_record in enumerate(records):
        for tag in dict.fromkeys(made_record.tags):
            expected.setdefault(tag.encode(), []).append(number)
    assert codec.collect(codec.encode(records, now_ms=0)).tags == expected
