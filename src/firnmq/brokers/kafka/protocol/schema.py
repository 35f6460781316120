"""The table-driven codec: a message is a class, and its annotations are the table.

A message lists its fields in wire order. The annotation of a field names its type and, where the
field did not exist from version 0 on, its versions:

    class HeartbeatRequest(Message):
        group_id: String
        generation_id: Int32
        member_id: String
        group_instance_id: Annotated[String | None, since(3)] = None

`Sequence[...]` is an array (decoded to a tuple), a class an inner structure, `| None` makes a
field nullable. A field that some version lacks needs a default: decoding gives it where the field
is not on the wire, and encoding leaves the field out whatever its value, because a broker must
answer old clients without knowing what they would miss.

Each class is compiled once per version into closures, see `compiler`. A class serves every version,
so a new version is a line for each new field; generated classes, one for each version, would be a
hundred times as much code and would not bound lengths by the bytes that remain.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, dataclass_transform
from uuid import UUID

import msgspec

from firnmq.brokers.kafka.protocol.primitives import Parts

VERSION_MAX: Final = 0x7FFF
"""Versions are int16 on the wire; this one stands for "every later version"."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _MessageType(msgspec.StructMeta):
    """Makes every message frozen and its fields keywords, without each class having to say so.

    Messages cannot form cycles, so the garbage collector need not look at them.
    """

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _MessageType:
        return super().__new__(cls, name, bases, namespace, frozen=True, kw_only=True, gc=False)


if TYPE_CHECKING:
    # A type checker would find msgspec's own rules before those above.
    _Base = object
else:
    _Base = msgspec.Struct


class Message(_Base, metaclass=_MessageType):
    """Base of all messages and of the structures inside them."""


class Kind(enum.Enum):
    """The primitive types, by the names of the reader's and writer's methods."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "blob"
    RECORDS = "records"


Bool: TypeAlias = Annotated[bool, Kind.BOOLEAN]
Int8: TypeAlias = Annotated[int, Kind.INT8]
Int16: TypeAlias = Annotated[int, Kind.INT16]
Int32: TypeAlias = Annotated[int, Kind.INT32]
Int64: TypeAlias = Annotated[int, Kind.INT64]
Float64: TypeAlias = Annotated[float, Kind.FLOAT64]
Uuid: TypeAlias = Annotated[UUID, Kind.UUID]
String: TypeAlias = Annotated[str, Kind.STRING]
Bytes: TypeAlias = Annotated[bytes, Kind.BYTES]
Records: TypeAlias = Annotated[Parts, Kind.RECORDS]
"""Decoded, a view of the frame; to encode, one piece or several, none of which is copied."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions in which a field is on the wire."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class NullableSince:
    """The first version in which null is allowed; without it, all versions of the field."""

    version: int


@dataclass(frozen=True, slots=True)
class Tag:
    """The field is a tagged one: left out when it has its default."""

    number: int


def since(version: int) -> Versions:
    return Versions(version, VERSION_MAX)


def until(version: int) -> Versions:
    return Versions(0, version)


def between(first: int, last: int) -> Versions:
    return Versions(first, last)


def null_since(version: int) -> NullableSince:
    return NullableSince(version)


def tag(number: int) -> Tag:
    return Tag(number)


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array; its elements are never null."""

    element: WireType


WireType: TypeAlias = Kind | ArrayOf | type[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the table."""

    name: str
    type: WireType
    versions: Versions
    nullable_since: int | None
    tag: int | None

    def is_in(self, version: int) -> bool:
        return self.versions.first <= version <= self.versions.last

    def is_nullable_in(self, version: int) -> bool:
        return self.nullable_since is not None and version >= self.nullable_since


@cache
def fields_of(message: type[Message]) -> tuple[Field, ...]:
    """The table of a message, read from its annotations."""
    hints = typing.get_type_hints(message, include_extras=True)
    return tuple(_field(name, hint) for name, hint in hints.items())


def default_of(message: type[Message], name: str) -> object:
    """What a field holds when it is not on the wire."""
    struct = typing.cast(type[msgspec.Struct], message)
    for field in msgspec.structs.fields(struct):
        if field.name == name and field.default is not msgspec.NODEFAULT:
            return field.default
    raise TypeError(f"{message.__name__}.{name} is not in every version and has no default")


def _field(name: str, hint: Any) -> Field:
    marks: list[object] = []
    is_nullable = False
    wire_type: WireType | None = None
    while wire_type is None:
        origin = typing.get_origin(hint)
        if origin is Annotated:
            hint, *found = typing.get_args(hint)
            marks += found
            wire_type = next((mark for mark in found if isinstance(mark, Kind)), None)
        elif origin is typing.Union or origin is types.UnionType:
            is_nullable = True
            (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        else:
            wire_type = _wire_type(hint)
    null_marks = [mark.version for mark in marks if isinstance(mark, NullableSince)]
    tags = [mark.number for mark in marks if isinstance(mark, Tag)]
    ranges = [mark for mark in marks if isinstance(mark, Versions)]
    return Field(
        name=name,
        type=wire_type,
        versions=ranges[0] if ranges else since(0),
        nullable_since=(null_marks or [0])[0] if is_nullable else None,
        tag=tags[0] if tags else None,
    )


def _wire_type(hint: Any) -> WireType:
    if typing.get_origin(hint) is Annotated:
        return next(mark for mark in hint.__metadata__ if isinstance(mark, Kind))
    if typing.get_origin(hint) is Sequence:
        return ArrayOf(_wire_type(typing.get_args(hint)[0]))
    if isinstance(hint, type) and issubclass(hint, Message):
        return hint
    raise TypeError(f"{hint!r} is no type of the protocol")
