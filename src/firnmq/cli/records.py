"""Records as JSON documents and as lines of a chosen format.

What `firn read --json` prints, `firn write --format json` takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from firnmq.errors import InvalidArgument, InvalidRecord
from firnmq.record import NewRecord, Record, document

if TYPE_CHECKING:
    from firnmq.config import TopicConfig


class Placed(NamedTuple):
    """A record and where it was found."""

    topic: str
    shard: int
    record: Record


def to_document(placed: Placed, config: TopicConfig) -> dict[str, object]:
    return document.to_document(
        placed.record, topic=placed.topic, shard=placed.shard, config=config
    )


def from_line(line: bytes) -> NewRecord:
    """A record from one JSON document; InvalidRecord says what is wrong with it."""
    import msgspec

    try:
        decoded = msgspec.json.decode(line)
    except msgspec.MsgspecError as error:
        raise InvalidRecord(f"not JSON: {error}") from error
    return document.from_document(decoded)


# Formats in the manner of kcat ------------------------------------------------------------------

_Part = Callable[[Placed], bytes]


def _header_list(record: Record) -> bytes:
    pairs = (
        name.encode("utf-8", "surrogateescape") + b"=" + (value or b"")
        for name, value in record.headers
    )
    return b",".join(pairs)


_FIELDS: dict[str, _Part] = {
    "t": lambda placed: placed.topic.encode(),
    "p": lambda placed: b"%d" % placed.shard,
    "o": lambda placed: b"%d" % placed.record.offset,
    "T": lambda placed: b"%d" % placed.record.timestamp_ms,
    "k": lambda placed: placed.record.key or b"",
    "v": lambda placed: placed.record.value or b"",
    "s": lambda placed: placed.record.value or b"",
    "K": lambda placed: b"%d" % (-1 if placed.record.key is None else len(placed.record.key)),
    "S": lambda placed: b"%d" % (-1 if placed.record.value is None else len(placed.record.value)),
    "g": lambda placed: ",".join(placed.record.tags).encode("utf-8", "surrogateescape"),
    "h": lambda placed: _header_list(placed.record),
    "%": lambda _: b"%",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def parse_format(text: str) -> Callable[[Placed], bytes]:
    """A function that writes a record; InvalidArgument names what it does not know."""
    parts: list[_Part] = []
    for piece in re.findall(r"%.?|\\.?|[^%\\]+", text, re.DOTALL):
        if piece[0] == "%":
            part = _FIELDS.get(piece[1:])
            if part is None:
                known = " ".join("%" + name for name in _FIELDS)
                raise InvalidArgument("format", f"{piece!r} is unknown; there are {known}")
            parts.append(part)
        elif piece[0] == "\\":
            if piece[1:] not in _ESCAPES:
                raise InvalidArgument(
                    "format", f"{piece!r} is no escape; there are \\n \\t \\r \\0"
                )
            parts.append(_constant(_ESCAPES[piece[1:]]))
        else:
            parts.append(_constant(piece.encode()))
    return lambda placed: b"".join([part(placed) for part in parts])


def _constant(text: bytes) -> _Part:
    return lambda _: text
