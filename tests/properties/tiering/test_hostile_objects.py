"""Objects of a bucket that somebody else has written: every field of every kind, and every CRC
right. Reading one raises Corruption that names it, or gives what the rest can work with."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from firnmq.engines.shardlog.producers import pack_aborted
from firnmq.errors import Corruption, InvalidField
from firnmq.index.layout import producer_key
from firnmq.tiering.format.index_layout import HEADER_BYTES, Header, Section, SectionKind
from firnmq.tiering.format.index_object import read_index, write_index
from firnmq.tiering.format.manifest import Manifest, SegmentManifest
from tests.unit.tiering.test_golden import DUMP, META
from tests.unit.tiering.test_manifest import GROUPS, SEGMENT, SHARD, TOPIC

Path = tuple[Any, ...]
MANIFESTS: list[Manifest] = [SEGMENT, SHARD, TOPIC, GROUPS]
INT64 = range(-(2**63), 2**63)

hostile = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, -5, 10**9, 2**31, 2**32, 2**63 - 1, 2**63, 2**64]),
    st.sampled_from(["", ".", "..", "../x", "a/b", "\0", "é", "1_-1", "xyz", "1_0\n", "A" * 5000]),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def repacked(manifest: Manifest, body: object) -> bytes:
    """The manifest's object with another body, and with the CRC that belongs to it."""
    frame = msgspec.json.decode(manifest.pack())
    raw = msgspec.json.encode(body)
    return msgspec.json.encode({**frame, "body": msgspec.Raw(raw), "crc32c": f"{crc32c(raw):08x}"})


def places(document: Any, at: Path = ()) -> Iterator[Path]:
    """Where there is something in a document, the document itself left out."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in items:
        yield (*at, name)
        if isinstance(value, (dict, list)):
            yield from places(value, (*at, name))


def changed(document: Any, path: Path, value: object) -> Any:
    document = copy.deepcopy(document)
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return document


def numbers_in(document: Any) -> Iterator[int]:
    if isinstance(document, dict):
        document = [*document.keys(), *document.values()]
    if isinstance(document, list):
        for each in document:
            yield from numbers_in(each)
    elif isinstance(document, int):
        yield document


BODIES = {each.format: msgspec.json.decode(each.pack())["body"] for each in MANIFESTS}
PLACES = [(each, path) for each in MANIFESTS for path in places(BODIES[each.format])]


@given(place=st.sampled_from(PLACES), value=hostile)
def test_every_field_of_every_manifest(place: tuple[Manifest, Path], value: object) -> None:
    manifest, path = place
    data = repacked(manifest, changed(BODIES[manifest.format], path, value))
    try:
        found = type(manifest).unpack(data, "the/object")
    except Corruption:
        return
    assert all(number in INT64 for number in numbers_in(msgspec.to_builtins(found)))
    assert type(manifest).unpack(found.pack(), "again") == found
    if isinstance(found, SegmentManifest):
        meta = found.meta()
        assert 0 <= meta.base_offset <= meta.end_offset
        assert 0 <= meta.seq < 2**31 - 1
        for number, _ in found.producers:
            producer_key(1, number)


@pytest.mark.parametrize(
    ("manifest", "name", "value"),
    [
        (TOPIC, "shard_count", 0),
        (TOPIC, "shard_count", -5),
        (TOPIC, "shard_count", 10**9),
        (TOPIC, "topic_id", "../../x"),
        (TOPIC, "topic_id", "not-hex"),
        (TOPIC, "topic", ".."),
        (SHARD, "start_offset", -1),
        (SHARD, "shard", "2_0"),
        (SHARD, "holes", [-1]),
        (SEGMENT, "seq", 2**31),
        (SEGMENT, "end_offset", 99),
        (SEGMENT, "length", -1),
        (SEGMENT, "upload_id", "g" * 16),
        (SEGMENT, "index_head_length", 501),
        (SEGMENT, "transactions", [[1, 2**15, 3]]),
        (GROUPS, "groups", {"g": {"1_0": [-1, 0]}}),
        (GROUPS, "groups", {"g\n": {"1_0": [1, 0]}}),
        (GROUPS, "groups", {"g": {"../x": [1, 0]}}),
    ],
)
def test_refusals_name_object_and_field(manifest: Manifest, name: str, value: object) -> None:
    data = repacked(manifest, changed(BODIES[manifest.format], (name,), value))
    with pytest.raises(InvalidField) as caught:
        type(manifest).unpack(data, "the/object")
    assert caught.value.where == "the/object"
    assert caught.value.field.startswith(name)


INDEX = write_index(DUMP, META)[0]
HEADER = Header.unpack(INDEX, "")


@given(
    kind=st.sampled_from([SectionKind.ABORTED, SectionKind.PRODUCERS, SectionKind.POINTS]),
    at=st.integers(0, 10**6),
    value=st.binary(min_size=1, max_size=9),
)
def test_every_byte_of_an_index_object_outside_its_blocks(
    kind: SectionKind, at: int, value: bytes
) -> None:
    """Some bytes of a section are others, and its CRC and the header's are theirs."""
    section = HEADER.sections[kind]
    data = bytearray(INDEX)
    at = section.position + at % section.length
    data[at : at + len(value)] = value[: section.position + section.length - at]
    content = data[section.position : section.position + section.length]
    sections = list(HEADER.sections)
    sections[kind] = Section(section.position, section.length, crc32c(bytes(content)))
    data[:HEADER_BYTES] = HEADER._replace(sections=tuple(sections)).pack()
    _read(bytes(data))


@given(
    field=st.sampled_from(Header._fields[:-1]),
    value=st.sampled_from([0, 1, 51, 100, 1_099, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]),
)
def test_every_field_of_the_header_of_an_index(field: str, value: int) -> None:
    try:
        header = HEADER._replace(**{field: value}).pack()
    except struct.error:
        return  # The format has no room for the number.
    _read(header + INDEX[HEADER_BYTES:])


@given(
    number=st.sampled_from(list(SectionKind)),
    field=st.sampled_from(Section._fields),
    value=st.sampled_from([0, 1, 100, 2**31, 2**32 - 1, 2**63, 2**64 - 1]),
)
def test_every_section_of_the_header_of_an_index(
    number: SectionKind, field: str, value: int
) -> None:
    sections = list(HEADER.sections)
    sections[number] = sections[number]._replace(**{field: value})
    try:
        header = HEADER._replace(sections=tuple(sections)).pack()
    except struct.error:
        return
    _read(header + INDEX[HEADER_BYTES:])


def _read(data: bytes) -> None:
    """Reads the object; what comes out of it can be stored."""
    try:
        header, dump = read_index(data, "the/object")
    except Corruption:
        return
    assert 0 <= header.base_offset <= header.end_offset < 2**63
    for each in dump.aborted:
        pack_aborted(each)
        assert 0 <= each.first_offset <= each.last_offset
    for producer, _ in dump.producers:
        producer_key(1, producer)
    for offset, position, time in dump.points:
        assert header.base_offset <= offset < header.end_offset
        assert 0 <= position < header.segment_length
        assert time in INT64
