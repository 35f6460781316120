"""Messages with random content, made from the tables, and the list of everything we speak."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

from firnmq.brokers.kafka.protocol.catalog import REQUESTS, RESPONSES
from firnmq.brokers.kafka.protocol.compiler import encode
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.protocol.schema import ArrayOf, Field, Kind, Message, WireType, fields_of
from firnmq.brokers.kafka.protocol.versions import ADVERTISED, ApiKey, is_flexible
from firnmq.brokers.kafka.protocol.writer import Writer

_BITS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_ALPHABET = "abcXYZ019._-/ \0äß€漢\U0001f40d"


@dataclass(frozen=True)
class Case:
    """One direction of one version of one API."""

    key: ApiKey
    version: int
    message: type[Message]

    @property
    def flexible(self) -> bool:
        return is_flexible(self.key, self.version)

    def __str__(self) -> str:
        return f"{self.message.__name__}-v{self.version}"


def cases() -> Iterator[Case]:
    for key in ApiKey:
        versions = ADVERTISED[key]
        for version in range(versions.first, versions.last + 1):
            yield Case(key, version, REQUESTS[key])
            yield Case(key, version, RESPONSES[key])


CASES = list(cases())


def joined(parts: Any) -> bytes:
    return b"".join(bytes(part) for part in parts)


def encoded(message: Message, case: Case) -> bytes:
    """The message alone, without header and size."""
    writer = Writer()
    encode(message, writer, case.version, flexible=case.flexible)
    return joined(writer.parts())


class Samples:
    """Random messages of a case.

    Tame ones keep to what kio's classes can hold: it turns error codes into an enumeration and
    times into dates.
    """

    def __init__(self, seed: int, *, tame: bool = False, length_max: int = 3) -> None:
        self._random = Random(seed)
        self._tame = tame
        self._length_max = length_max

    def message(self, case: Case) -> Message:
        """A message with the fields of the case's version."""
        return self._struct(case.message, case.version)

    def full(self, message: type[Message]) -> Message:
        """A message with every field of every version."""
        return self._struct(message, None)

    def _struct(self, message: type[Message], version: int | None) -> Message:
        values: dict[str, Any] = {}
        for field in fields_of(message):
            # A tagged field is left at its default half of the time.
            if version is None or (
                field.is_in(version) and (field.tag is None or self._random.random() < 0.5)
            ):
                values[field.name] = self._value(field, version)
        return message(**values)

    def _value(self, field: Field, version: int | None) -> Any:
        if version is not None and field.is_nullable_in(version) and self._random.random() < 0.3:
            return None
        if self._tame and field.type in _BITS:
            if field.name.endswith("error_code"):
                return int(self._random.choice(list(ErrorCode)))
            if field.name.endswith("_ms") or "timestamp" in field.name:
                return self._random.choice([0, 1, 999, 60_000, 2**31 - 1])
        return self._of(field.type, version)

    def _of(self, wire_type: WireType, version: int | None) -> Any:
        random = self._random
        if isinstance(wire_type, ArrayOf):
            count = random.randint(0, self._length_max)
            return [self._of(wire_type.element, version) for _ in range(count)]
        if not isinstance(wire_type, Kind):
            return self._struct(wire_type, version)
        if wire_type in _BITS:
            half = 2 ** (_BITS[wire_type] - 1)
            return random.choice([0, 1, -1, half - 1, -half, random.randrange(-half, half)])
        match wire_type:
            case Kind.BOOLEAN:
                return random.random() < 0.5
            case Kind.FLOAT64:
                return random.choice([0.0, -1.5, 1e300, random.random()])
            case Kind.UUID:
                return UUID(int=random.choice([0, random.getrandbits(128)]))
            case Kind.STRING:
                return "".join(random.choices(_ALPHABET, k=self._length()))
            case _:
                return random.randbytes(self._length())

    def _length(self) -> int:
        """Around the sizes at which a varint gets its second byte, as well as short ones."""
        return self._random.choice([0, 1, 5, 30, 42, 126, 127, 128, 130])
