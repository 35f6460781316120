from collections.abc import Sequence
from typing import Annotated

import pytest

from firnmq.brokers.kafka.protocol.catalog import REQUESTS, RESPONSES
from firnmq.brokers.kafka.protocol.compiler import compile_codec, decode, encode
from firnmq.brokers.kafka.protocol.messages.groups import JoinGroupResponse
from firnmq.brokers.kafka.protocol.messages.metadata import MetadataRequest
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.schema import (
    ArrayOf,
    Bool,
    Field,
    Int16,
    Int32,
    Kind,
    Message,
    Records,
    String,
    Versions,
    between,
    fields_of,
    null_since,
    since,
    tag,
    until,
)
from firnmq.brokers.kafka.protocol.versions import ADVERTISED, ApiKey
from firnmq.brokers.kafka.protocol.writer import Writer
from firnmq.errors import InvalidArgument
from tests.unit.brokers.kafka.protocol.samples import joined


class Inner(Message):
    number: Int16


class Everything(Message):
    plain: Int32
    later: Annotated[Bool, since(2)] = True
    earlier: Annotated[String, until(1)] = "?"
    middle: Annotated[String | None, between(1, 2), null_since(2)] = None
    inner: Inner
    inners: Sequence[Inner] | None
    names: Annotated[Sequence[String], since(1)] = ()
    records: Records | None
    tagged: Annotated[Int16, since(2), tag(3)] = 7


def test_annotations_are_the_table() -> None:
    every = Versions(0, 0x7FFF)
    assert fields_of(Everything) == (
        Field(name="plain", type=Kind.INT32, versions=every, nullable_since=None, tag=None),
        Field(name="later", type=Kind.BOOLEAN, versions=since(2), nullable_since=None, tag=None),
        Field(name="earlier", type=Kind.STRING, versions=until(1), nullable_since=None, tag=None),
        Field(name="middle", type=Kind.STRING, versions=between(1, 2), nullable_since=2, tag=None),
        Field(name="inner", type=Inner, versions=every, nullable_since=None, tag=None),
        Field(name="inners", type=ArrayOf(Inner), versions=every, nullable_since=0, tag=None),
        Field(
            name="names",
            type=ArrayOf(Kind.STRING),
            versions=since(1),
            nullable_since=None,
            tag=None,
        ),
        Field(name="records", type=Kind.RECORDS, versions=every, nullable_since=0, tag=None),
        Field(name="tagged", type=Kind.INT16, versions=since(2), nullable_since=None, tag=3),
    )


def test_two_versions_of_one_message() -> None:
    message = Everything(
        plain=1,
        later=False,
        earlier="e",
        inner=Inner(number=2),
        inners=[Inner(number=3)],
        names=["n"],
        records=None,
        tagged=8,
    )
    assert written(message, 0) == (
        b"\0\0\0\1" + b"\0\1e" + b"\0\2" + b"\0\0\0\1\0\3" + b"\xff\xff\xff\xff"
    )
    assert written(message, 2, flexible=True) == (
        b"\0\0\0\1" + b"\0" + b"\0" + b"\0\2\0" + b"\2\0\3\0" + b"\2\2n" + b"\0" + b"\1\3\2\0\x08"
    )


def test_the_smallest_size_bounds_arrays() -> None:
    assert compile_codec(Inner, 0, False).size_bytes_min == 2
    assert compile_codec(Inner, 0, True).size_bytes_min == 3
    assert compile_codec(Everything, 0, False).size_bytes_min == 4 + 2 + 2 + 4 + 4


def test_messages_are_values() -> None:
    assert Inner(number=1) == Inner(number=1)
    assert repr(Inner(number=1)) == "Inner(number=1)"
    with pytest.raises(AttributeError):
        Inner(number=1).number = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Inner(1)  # type: ignore[call-arg]


class WithoutDefault(Message):
    later: Annotated[Int16, since(2)]


class NoWireType(Message):
    value: float


class TagTooEarly(Message):
    value: Annotated[Int16, tag(0)] = 0


class MaybeInner(Message):
    inner: Inner | None = None


@pytest.mark.parametrize("message", [WithoutDefault, NoWireType, TagTooEarly])
def test_a_table_that_makes_no_sense_is_refused(message: type[Message]) -> None:
    with pytest.raises(TypeError):
        compile_codec(message, 0, False)


@pytest.mark.parametrize(
    "message, written",
    [(MaybeInner(), b"\xff"), (MaybeInner(inner=Inner(number=7)), b"\x01\x00\x07")],
)
def test_a_structure_may_be_missing(message: MaybeInner, written: bytes) -> None:
    writer = Writer()
    encode(message, writer, 0, flexible=False)
    assert b"".join(bytes(part) for part in writer.parts()) == written
    assert decode(MaybeInner, Reader(written), 0, flexible=False) == message


@pytest.mark.parametrize("key", ApiKey)
def test_every_advertised_version_compiles(key: ApiKey) -> None:
    versions = ADVERTISED[key]
    for version in range(versions.first, versions.last + 1):
        for message in (REQUESTS[key], RESPONSES[key]):
            compile_codec(message, version, version >= versions.flexible_first)


def test_a_value_that_its_field_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"Inner\.number"):
        written(Inner(number=40_000), 0)
    with pytest.raises(InvalidArgument, match=r"Inner\.number"):
        written(Inner(number="1"), 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"MetadataRequest\.topics"):
        written(MetadataRequest(topics=None), 0)
    response = JoinGroupResponse(protocol_name=None, leader="", member_id="", members=[])
    assert written(response, 7, flexible=True)
    with pytest.raises(InvalidArgument, match=r"JoinGroupResponse\.protocol_name"):
        written(response, 5)
    with pytest.raises(InvalidArgument, match=r"JoinGroupResponse\.leader"):
        written(JoinGroupResponse(protocol_name="", leader="\ud800", member_id="", members=[]), 0)


def test_a_tagged_value_that_its_field_cannot_hold_is_refused_by_name() -> None:
    message = Everything(plain=1, inner=Inner(number=1), inners=None, records=None, tagged=70_000)
    with pytest.raises(InvalidArgument, match=r"Everything\.tagged"):
        written(message, 2, flexible=True)


def test_decoding_gives_the_defaults_of_what_is_not_there() -> None:
    decoded = decode(Everything, Reader(b"\0" * 20), 0, flexible=False)
    assert decoded.later is True
    assert decoded.names == ()
    assert decoded.tagged == 7


def written(message: Message, version: int, *, flexible: bool = False) -> bytes:
    writer = Writer()
    encode(message, writer, version, flexible=flexible)
    return joined(writer.parts())
