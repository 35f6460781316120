"""Records as lines of a chosen format. A record is the document that the HTTP interface gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from firnmq.cli.console import safe_text, time_text
from firnmq.errors import InvalidArgument

Document = dict[str, Any]
_Part = Callable[[Document], bytes]

_VALUE_CHARS_MAX = 1000
"""Characters of a value shown on a terminal; in a pipe the value is whole."""


def raw_of(document: Document, field: str) -> bytes | None:
    """The bytes of a field that is text, or base64 under a name that ends so."""
    text = document.get(field)
    if text is not None:
        return str(text).encode()
    encoded = document.get(f"{field}_base64")
    if encoded is None:
        return None
    from base64 import b64decode

    return b64decode(encoded)


def _size(document: Document, field: str) -> bytes:
    raw = raw_of(document, field)
    return b"%d" % (-1 if raw is None else len(raw))


def _headers(document: Document) -> bytes:
    return b",".join(
        header["name"].encode() + b"=" + (raw_of(header, "value") or b"")
        for header in document["headers"]
    )


_FIELDS: dict[str, _Part] = {
    "t": lambda document: str(document["topic"]).encode(),
    "p": lambda document: b"%d" % document["shard"],
    "o": lambda document: b"%d" % document["offset"],
    "T": lambda document: b"%d" % document["timestamp_ms"],
    "k": lambda document: raw_of(document, "key") or b"",
    "v": lambda document: raw_of(document, "value") or b"",
    "s": lambda document: raw_of(document, "value") or b"",
    "K": lambda document: _size(document, "key"),
    "S": lambda document: _size(document, "value"),
    "g": lambda document: ",".join(document["tags"]).encode(),
    "h": _headers,
    "%": lambda _: b"%",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def parse_format(text: str) -> _Part:
    """A function that writes a record in the manner of kcat; InvalidArgument names what is
    unknown."""
    parts: list[_Part] = []
    at = 0
    while at < len(text):
        mark = text[at]
        if mark not in "%\\":
            parts.append(_constant(mark.encode()))
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        at += 2
        if mark == "%":
            if letter not in _FIELDS:
                known = " ".join("%" + name for name in _FIELDS)
                raise InvalidArgument("--format", f"{'%' + letter!r} is unknown; there are {known}")
            parts.append(_FIELDS[letter])
        else:
            if letter not in _ESCAPES:
                known = "\\n \\t \\r \\0 \\\\"
                raise InvalidArgument(
                    "--format", f"{mark + letter!r} is no escape; there are {known}"
                )
            parts.append(_constant(_ESCAPES[letter]))
    return lambda document: b"".join([part(document) for part in parts])


def _constant(text: bytes) -> _Part:
    return lambda _: text


def safe_format(formatted: _Part) -> _Part:
    """The same for a terminal: line ends and tabs stay, the rest cannot do harm."""

    def write(document: Document) -> bytes:
        text = formatted(document).decode("utf-8", "backslashreplace")
        return "".join(each if each in "\n\t" else safe_text(each) for each in text).encode()

    return write


def in_columns(is_terminal: bool) -> _Part:
    """Place, time, key, value and tags of a record on one line."""

    def write(document: Document) -> bytes:
        raw = raw_of(document, "value")
        value = safe_text(raw)
        if is_terminal and len(value) > _VALUE_CHARS_MAX:
            value = f"{value[:_VALUE_CHARS_MAX]}… ({len(raw or b''):,} bytes)"
        columns = [
            f"{document['shard']}:{document['offset']}",
            time_text(document["timestamp_ms"]),
            safe_text(raw_of(document, "key")),
            value,
        ]
        if document["tags"]:
            columns.append("#" + " #".join(map(safe_text, document["tags"])))
        return ("  ".join(columns) + "\n").encode()

    return write


class RecordPrinter:
    """Writes records, as many at a time as come together."""

    def __init__(
        self, layout: str | None, as_json: bool, out: BinaryIO, *, is_terminal: bool
    ) -> None:
        self._as_json = as_json
        if layout is None:
            self._format = in_columns(is_terminal)
        else:
            self._format = parse_format(layout)
            if is_terminal:
                self._format = safe_format(self._format)
        self._out = out
        self.record_count = 0

    def show_lines(self, pieces: Iterable[list[bytes]]) -> None:
        """Prints documents that are JSON already."""
        if not self._as_json:
            self.show([json.loads(line) for line in lines] for lines in pieces)
            return
        for lines in pieces:
            self.record_count += len(lines)
            self._write(b"".join([line + b"\n" for line in lines]))

    def show(self, pages: Iterable[list[Document]]) -> None:
        for documents in pages:
            if self._as_json:
                parts = [
                    json.dumps(each, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
                    for each in documents
                ]
            else:
                parts = [self._format(each) for each in documents]
            self.record_count += len(documents)
            self._write(b"".join(parts))

    def _write(self, text: bytes) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
