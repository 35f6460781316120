"""Compiles a message class and a version into the functions that read and write it.

Everything that depends on the version (which fields, which layout, what may be null, how small an
array element can be) is decided here, once; the closures only do the work.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

from firnmq.brokers.kafka.protocol.errors import MalformedRequest
from firnmq.brokers.kafka.protocol.reader import NULL, Reader
from firnmq.brokers.kafka.protocol.schema import (
    ArrayOf,
    Field,
    Kind,
    Message,
    WireType,
    default_of,
    fields_of,
)
from firnmq.brokers.kafka.protocol.writer import Writer
from firnmq.errors import InvalidArgument

MessageT = TypeVar("MessageT", bound=Message)

Read: TypeAlias = Callable[[Reader], Any]
Write: TypeAlias = Callable[[Writer, Any], None]

_FIXED_BYTES: Final = {
    Kind.BOOLEAN: 1,
    Kind.INT8: 1,
    Kind.INT16: 2,
    Kind.INT32: 4,
    Kind.INT64: 8,
    Kind.FLOAT64: 8,
    Kind.UUID: 16,
}
_CLASSIC_BYTES_MIN: Final = {Kind.STRING: 2, Kind.BYTES: 4, Kind.RECORDS: 4}

_MISFITS: Final = (struct.error, TypeError, AttributeError, UnicodeEncodeError)
"""What Python raises when a value does not fit the type it is to be written as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How one type is read and written, and the fewest bytes it can take."""

    read: Read
    write: Write
    size_bytes_min: int


def decode(message: type[MessageT], reader: Reader, version: int, *, flexible: bool) -> MessageT:
    """Reads a message. Bytes behind it are left alone, as Kafka's own broker leaves them."""
    try:
        decoded: MessageT = compile_codec(message, version, flexible).read(reader)
    except MalformedRequest as error:
        error.within(message.__name__)
        raise
    return decoded


def encode(message: Message, writer: Writer, version: int, *, flexible: bool) -> None:
    """Writes a message; a value that its field cannot hold gives `InvalidArgument`."""
    compile_codec(type(message), version, flexible).write(writer, message)


@cache
def compile_codec(message: type[Message], version: int, flexible: bool) -> Codec:
    """The codec of a message or inner structure in one version."""
    plain: list[tuple[Field, Codec]] = []
    tagged: list[tuple[Field, Codec]] = []
    for field in fields_of(message):
        if not field.is_in(version):
            default_of(message, field.name)  # Raises if there is none.
        elif field.tag is None:
            plain.append((field, field_codec(field, version, flexible)))
        else:
            tagged.append((field, field_codec(field, version, flexible)))
    if tagged and not flexible:
        raise TypeError(f"{message.__name__} has tagged fields in version {version}")
    read_tagged = _tagged_reader(tagged) if flexible else None
    write_tagged = _tagged_writer(message, tagged) if flexible else None
    return Codec(
        read=_struct_reader(message, plain, read_tagged),
        write=_struct_writer(message, plain, write_tagged),
        size_bytes_min=sum(codec.size_bytes_min for _, codec in plain) + (1 if flexible else 0),
    )


def field_codec(field: Field, version: int, flexible: bool) -> Codec:
    return type_codec(field.type, version, flexible, field.is_nullable_in(version))


def type_codec(wire_type: WireType, version: int, flexible: bool, nullable: bool = False) -> Codec:
    if isinstance(wire_type, Kind):
        return _primitive(wire_type, flexible, nullable)
    if isinstance(wire_type, ArrayOf):
        return _array(type_codec(wire_type.element, version, flexible, False), flexible, nullable)
    codec = compile_codec(wire_type, version, flexible)
    return _nullable_struct(codec) if nullable else codec


def _nullable_struct(struct: Codec) -> Codec:
    """A byte says whether the structure is there."""

    def read(reader: Reader) -> Any:
        return None if reader.int8() < 0 else struct.read(reader)

    def write(writer: Writer, value: Any) -> None:
        writer.int8(-1 if value is None else 1)
        if value is not None:
            struct.write(writer, value)

    return Codec(read=read, write=write, size_bytes_min=1)


def _primitive(kind: Kind, flexible: bool, nullable: bool) -> Codec:
    if kind in _FIXED_BYTES:
        size = _FIXED_BYTES[kind]
        name = kind.value
    else:
        size = 1 if flexible else _CLASSIC_BYTES_MIN[kind]
        name = f"{'compact_' if flexible else ''}{'nullable_' if nullable else ''}{kind.value}"
    # Bytes are written like records; only reading tells them apart.
    write_name = name.replace("blob", "records")
    return Codec(read=getattr(Reader, name), write=getattr(Writer, write_name), size_bytes_min=size)


def _array(element: Codec, flexible: bool, nullable: bool) -> Codec:
    count_of = Reader.compact_array_count if flexible else Reader.array_count
    write_count = Writer.compact_array_count if flexible else Writer.array_count
    read_element, write_element = element.read, element.write
    # A structure without fields takes no bytes, and would make the bound on the count void.
    element_bytes_min = max(1, element.size_bytes_min)

    def read(reader: Reader) -> tuple[Any, ...] | None:
        count = count_of(reader, element_bytes_min)
        if count == NULL:
            if nullable:
                return None
            raise reader.malformed("null where an array is required")
        return tuple([read_element(reader) for _ in range(count)])

    def write(writer: Writer, values: Any) -> None:
        if values is None:
            if not nullable:
                raise TypeError("null where an array is required")
            write_count(writer, None)
            return
        write_count(writer, len(values))
        for value in values:
            write_element(writer, value)

    return Codec(read=read, write=write, size_bytes_min=1 if flexible else 4)


def _struct_reader(
    message: type[Message],
    plain: list[tuple[Field, Codec]],
    read_tagged: Callable[[Reader, dict[str, Any]], None] | None,
) -> Read:
    steps = [(field.name, codec.read) for field, codec in plain]

    def read(reader: Reader) -> Message:
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, read_field in steps:
                values[name] = read_field(reader)
        except MalformedRequest as error:
            error.within(name)
            raise
        if read_tagged is not None:
            read_tagged(reader, values)
        return message(**values)

    return read


def _struct_writer(
    message: type[Message],
    plain: list[tuple[Field, Codec]],
    write_tagged: Write | None,
) -> Write:
    steps = [(field.name, codec.write) for field, codec in plain]

    def write(writer: Writer, value: Any) -> None:
        name = ""
        try:
            for name, write_field in steps:
                write_field(writer, getattr(value, name))
        except _MISFITS as error:
            raise InvalidArgument(f"{message.__name__}.{name}", str(error)) from error
        if write_tagged is not None:
            write_tagged(writer, value)

    return write


def _tagged_reader(
    tagged: list[tuple[Field, Codec]],
) -> Callable[[Reader, dict[str, Any]], None]:
    known = {field.tag: (field.name, codec.read) for field, codec in tagged}

    def read(reader: Reader, values: dict[str, Any]) -> None:
        for _ in range(reader.tagged_field_count()):
            number, size = reader.tagged_field()
            if number not in known:
                # A newer client says something we do not know; the format lets us pass over it.
                reader.skip(size)
                continue
            name, read_field = known[number]
            end = reader.position + size
            try:
                values[name] = read_field(reader)
                if reader.position != end:
                    raise reader.malformed(f"the content does not fill its {size:,} bytes")
            except MalformedRequest as error:
                error.within(name)
                raise

    return read


def _tagged_writer(message: type[Message], tagged: list[tuple[Field, Codec]]) -> Write:
    rows = [
        (field.tag or 0, field.name, default_of(message, field.name), codec.write)
        for field, codec in sorted(tagged, key=lambda row: row[0].tag or 0)
    ]

    def write(writer: Writer, value: Any) -> None:
        if not rows:
            writer.raw(b"\x00")
            return
        present = []
        for number, name, default, write_field in rows:
            field_value = getattr(value, name)
            # An empty list is as good a default as the empty tuple of the table.
            if field_value != default and not (default == () and len(field_value) == 0):
                content = Writer()
                try:
                    write_field(content, field_value)
                except _MISFITS as error:
                    raise InvalidArgument(f"{message.__name__}.{name}", str(error)) from error
                present.append((number, content))
        writer.unsigned_varint(len(present))
        for number, content in present:
            writer.tagged_field(number, content)

    return write
