"""Entries of the key and tag indexes, against a plain description of their layout."""

import struct
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.errors import InvalidArgument
from firnmq.index.layout import TERM_BYTES_MAX, pack_place, short_number, term, unpack_offsets
from firnmq.record import NewRecord, encode
from tests.unit.record import codec_forms

PREFIX = b"shard+seg"
u62 = st.integers(0, 2**62)
names = st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=140))
rising = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**31)), min_size=1).map(
    lambda offsets: sorted(set(offsets))
)


@given(st.dictionaries(names, st.integers(0, 2**31)), u62, u62)
def test_key_entries(keys: dict[bytes, int], base_offset: int, position: int) -> None:
    expected = [
        (PREFIX + term(key), struct.pack(">Q", base_offset + offset) + short_number(position))
        for key, offset in keys.items()
    ]
    for codec in codec_forms.forms():
        place = short_number(position)
        found = codec.key_entries(PREFIX, keys, base_offset, place, term, TERM_BYTES_MAX)
        assert found == expected
        assert all(type(part) is bytes for entry in found for part in entry)


@given(st.lists(st.one_of(st.none(), names), min_size=1, max_size=40), u62, u62)
def test_packed_keys_give_the_same_entries(
    records: list[bytes | None], base_offset: int, position: int
) -> None:
    """A key that occurs again has an entry for each record, of which the last is stored last."""
    batch = encode([NewRecord(value=b"v", key=key) for key in records], now_ms=1)
    place = short_number(position)
    for codec in codec_forms.forms():
        keys = codec.collect(batch).keys
        packed = codec.collect(batch, is_packed=True).keys
        assert dict(packed.items()) == keys
        assert len(packed) == sum(key is not None for key in records)
        wanted = codec.key_entries(PREFIX, keys, base_offset, place, term, TERM_BYTES_MAX)
        found = codec.key_entries(PREFIX, packed, base_offset, place, term, TERM_BYTES_MAX)
        assert dict(found) == dict(wanted)
        assert len(found) == len(packed)
        assert all(type(part) is bytes for entry in found for part in entry)


@given(st.dictionaries(names, rising), u62, u62)
def test_tag_entries(tags: dict[bytes, list[int]], base_offset: int, position: int) -> None:
    for codec in codec_forms.forms():
        place = pack_place(position)
        found = codec.tag_entries(PREFIX, tags, base_offset, place, term, TERM_BYTES_MAX)
        assert all(type(part) is bytes for entry in found for part in entry)
        for (key, value), (tag, offsets) in zip(found, tags.items(), strict=True):
            word = term(tag)
            assert key == PREFIX + struct.pack(f">H{len(word)}sQ", len(word), word, base_offset)
            assert unpack_offsets(value) == (position, offsets)


@pytest.mark.parametrize(
    ("offsets", "packed"),
    [
        ([0], "42 00"),
        ([255], "42 ff"),
        ([0, 255, 510], "42 00 ff ff"),
        ([256], "48 01 00"),
        ([1, 65_536], "48 00 01 ff ff"),
        ([65_536], "49 00 01 00 00"),
        ([2**32 - 1], "49 ff ff ff ff"),
        ([2**32, 2**32 + 2], "51 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 02"),
        (range(3, 6), "42 03 01 01"),
        ((7, 7), "42 07 00"),
    ],
)
def test_steps_are_as_narrow_as_they_can_be(
    codec: ModuleType, offsets: Sequence[int], packed: str
) -> None:
    ((_, value),) = codec.tag_entries(b"", {b"t": offsets}, 0, b"", term, TERM_BYTES_MAX)
    assert value == bytes.fromhex(packed)


def test_offsets_that_fall_are_refused(codec: ModuleType) -> None:
    with pytest.raises(InvalidArgument):
        codec.tag_entries(b"", {b"t": [2, 1]}, 0, b"", term, TERM_BYTES_MAX)
    with pytest.raises(InvalidArgument):
        codec.tag_entries(b"", {b"t": [-1]}, 0, b"", term, TERM_BYTES_MAX)


def test_no_terms_no_entries(codec: ModuleType) -> None:
    assert codec.key_entries(PREFIX, {}, 5, b"", term, TERM_BYTES_MAX) == []
    assert codec.tag_entries(PREFIX, {}, 5, b"", term, TERM_BYTES_MAX) == []
