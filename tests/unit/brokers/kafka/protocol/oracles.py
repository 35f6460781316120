"""Two other implementations of the protocol, made to encode and decode our messages.

Both are given only bytes that we encoded ourselves: kio allocates whatever a length asks for.
Fields are matched by their place on the wire, so nothing depends on names agreeing.
"""

import dataclasses
import datetime
import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from kafka.protocol.api_message import ApiMessage
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from firnmq.brokers.kafka.protocol.primitives import ZERO_UUID
from firnmq.brokers.kafka.protocol.schema import Field, Message, default_of, fields_of
from tests.unit.brokers.kafka.protocol.samples import Case

_NEWER = {"zk_migration_ready"}
"""Tagged fields that later brokers added to a version that we speak."""


def in_version(message: type[Message], version: int) -> list[Field]:
    return [field for field in fields_of(message) if field.is_in(version)]


def plain(value: Any, version: int) -> Any:
    """A message as nested tuples of the fields that the version has, buffers as bytes."""
    match value:
        case Message():
            fields = in_version(type(value), version)
            return tuple(plain(getattr(value, field.name), version) for field in fields)
        case list() | tuple():
            return tuple(plain(element, version) for element in value)
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return value


class KafkaPython:
    """kafka-python, which derives its classes from the protocol's own description."""

    def __init__(self) -> None:
        for area in ("admin", "consumer", "metadata", "producer", "sasl"):
            import_module(f"kafka.protocol.{area}")
        self._classes = {
            (found.API_KEY, found.is_request()): found
            for found in _subclasses(ApiMessage)
            if found._class_version is None
        }

    def knows(self, case: Case) -> bool:
        return (case.key, True) in self._classes

    def class_of(self, case: Case) -> Any:
        return self._classes[case.key, case.message.__name__.endswith("Request")]

    def rows(self, case: Case) -> Iterator[tuple[str, bool]]:
        """Name and nullability of every field, inner structures included, in wire order."""
        yield from self._rows(self.class_of(case)._struct, case.version)

    def _rows(self, struct: Any, version: int) -> Iterator[tuple[str, bool]]:
        for field in self._fields(struct, version):
            yield field.name, field.nullable_for_version_q(version)
            if field.is_struct() or field.is_struct_array():
                yield from self._rows(field, version)

    def encode(self, message: Message, case: Case) -> bytes:
        theirs = self._made(self.class_of(case), message, case.version)
        encoded: bytes = theirs.encode(version=case.version)
        return bytes(encoded)

    def decode(self, data: bytes, case: Case) -> Any:
        """As `plain` shows our own messages."""
        # Not `decode` of the class itself: that of ApiVersions takes any error for version 0.
        theirs = ApiMessage.decode.__func__(self.class_of(case), data, version=case.version)
        return self._plain(theirs, case.version)

    def _fields(self, struct: Any, version: int) -> list[Any]:
        fields = [field for field in struct.fields.values() if field.for_version_q(version)]
        return [field for field in fields if field.name not in _NEWER]

    def _made(self, data_class: Any, message: Message, version: int) -> Any:
        theirs = self._fields(data_class._struct, version)
        ours = in_version(type(message), version)
        assert len(theirs) == len(ours)
        values = {}
        for their_field, our_field in zip(theirs, ours, strict=True):
            value = getattr(message, our_field.name)
            if their_field.tag is not None and _is_default(message, our_field.name):
                continue
            if their_field.type_str == "bitfield":
                value = {bit for bit in range(32) if value >> bit & 1}
            elif isinstance(value, Message):
                value = self._made(their_field.data_class, value, version)
            elif isinstance(value, list) and value and isinstance(value[0], Message):
                value = [self._made(their_field.data_class, item, version) for item in value]
            values[their_field.name] = value
        return data_class(version=version, **values)

    def _plain(self, theirs: Any, version: int) -> Any:
        if isinstance(theirs, list | tuple):
            return tuple(self._plain(element, version) for element in theirs)
        if isinstance(theirs, bytearray | memoryview):
            return bytes(theirs)
        if not hasattr(theirs, "_struct"):
            return theirs
        fields = self._fields(theirs._struct, version)
        return tuple(self._value(theirs, field, version) for field in fields)

    def _value(self, theirs: Any, field: Any, version: int) -> Any:
        value = getattr(theirs, field.name)
        if value is None and field.is_struct() and field.tag is not None:
            # A tagged structure that was left out; ours then holds the defaults of its fields.
            return tuple(inner.default for inner in self._fields(field, version))
        if field.type_str == "bitfield":
            bits = sum(1 << bit for bit in ({31} if value is None else value))
            return bits - (bits >> 31 << 32)
        if value is None and field.type_str == "uuid":
            return ZERO_UUID
        return self._plain(value, version)


class Kio:
    """kio, whose classes were generated from a recent protocol description."""

    def class_of(self, case: Case) -> Any | None:
        """None for a version that Kafka 4 removed."""
        name = api_key_map[case.key]
        direction = "request" if case.message.__name__.endswith("Request") else "response"
        try:
            module = import_module(f"kio.schema.{name}.v{case.version}.{direction}")
        except ModuleNotFoundError:
            return None
        return getattr(module, case.message.__name__)

    def decode(self, data: bytes, case: Case) -> tuple[Any, bytes]:
        """What kio reads from our bytes, as `plain` shows it, and what it writes again."""
        entity_type = self.class_of(case)
        entity, size = entity_reader(entity_type)(data, 0)
        assert size == len(data)
        buffer = io.BytesIO()
        entity_writer(entity_type)(buffer, entity)
        return self._plain(entity), buffer.getvalue()

    def _plain(self, value: Any) -> Any:
        match value:
            case KioErrorCode():
                return value.value
            case datetime.timedelta():
                return round(value.total_seconds() * 1000)
            case datetime.datetime():
                return round(value.timestamp() * 1000)
            case tuple():
                return tuple(self._plain(element) for element in value)
        if dataclasses.is_dataclass(value):
            fields = [field for field in dataclasses.fields(value) if field.name not in _NEWER]
            return tuple(self._field(value, field) for field in fields)
        return value

    def _field(self, entity: Any, field: Any) -> Any:
        value = getattr(entity, field.name)
        if value is None and field.metadata.get("kafka_type") == "uuid":
            return ZERO_UUID
        return self._plain(value)


def _is_default(message: Message, name: str) -> bool:
    value, default = getattr(message, name), default_of(type(message), name)
    return bool(value == default or (default == () and not value))


def _subclasses(base: type) -> list[Any]:
    found = []
    for subclass in base.__subclasses__():
        found += [subclass, *_subclasses(subclass)]
    return found
