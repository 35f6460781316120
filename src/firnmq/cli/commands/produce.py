"""`firn produce`: one record from the command line, or many from a file or standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import click

from firnmq.cli.console import count, json_option, print_json, progress_bar, tell_when_stopped
from firnmq.cli.errors import BadInput
from firnmq.cli.lines import InputLines
from firnmq.cli.node import NodeRefused
from firnmq.cli.target import chosen_node, opened, target_options
from firnmq.cli.topic_argument import topic_argument
from firnmq.errors import InvalidArgument, InvalidRecord

_BATCH_RECORDS = 1000
_BATCH_BYTES = 4 * 1024 * 1024
"""A request takes up to so many records or bytes of input, whichever comes first, and no more than
fits a batch of the topic: a request is stored whole or not at all."""
_RECORD_OVERHEAD_BYTES = 128
"""What a record may take beside its input."""
_RANGES_MAX = 1000
"""Ranges of offsets that are told for a shard. Other producers write between ours, and the command
may run for months: then the last range grows, and has records of others in it."""
_LINE_BYTES_MAX = 16 * 1024 * 1024
"""A longer line is refused before it is read on; a node takes no larger request."""

Document = dict[str, Any]


class Sink(NamedTuple):
    """Where records go."""

    write: Callable[[list[Document]], list[Document]]
    """Stores records and gives their places."""
    record_bytes_max: int
    batch_bytes_max: int


@click.command()
@topic_argument()
@click.argument("value", required=False)
@click.option("--key", help="Key of every record.")
@click.option("--tag", "tags", multiple=True, help="A tag of every record; repeat for more.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header.")
@click.option("--shard", type=int, help="Shard; by default that of the key, or in turn.")
@click.option("--timestamp-ms", type=int, help="Time of every record; otherwise now.")
@click.option("--file", "source", metavar="FILE", help="Read records from a file; - is stdin.")
@click.option(
    "--input",
    "layout",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="In a file: a value per line, or a JSON document as firn read --json prints it.",
)
@target_options
@json_option
def produce(
    topic: str,
    value: str | None,
    key: str | None,
    tags: tuple[str, ...],
    headers: tuple[str, ...],
    shard: int | None,
    timestamp_ms: int | None,
    source: str | None,
    layout: str,
    as_json: bool,
) -> None:
    """Store VALUE, or the records of a file, and print their offsets.

    Without VALUE and --file, records are read from standard input. When no input has come for
    0.1 s, the records read so far are stored, so that `tail -f log | firn produce TOPIC` stores
    lines as they are written. Ctrl-C stores the records read so far, and prints how many there are.
    """
    if value is not None and source is not None:
        raise click.UsageError("give either a VALUE or --file, not both")
    if shard is not None and shard < 0:
        raise InvalidArgument("--shard", f"must be 0 or more, not {shard}")
    common = _common(key, tags, headers, timestamp_ms)
    with _sink(topic, shard) as sink:
        sending = _Sending(sink)
        tell_when_stopped(sending.summary)
        if value is not None:
            sending.add(_with_common(_document_of(os.fsencode(value)), common), 0)
            sending.flush()
        else:
            _send_file(source or "-", layout, common, sending, topic)
    sending.show(topic, as_json=as_json)


@contextmanager
def _sink(topic: str, shard: int | None) -> Iterator[Sink]:
    node = chosen_node(changes=True)
    if node is not None:
        options = node.get("topics", topic, "config")["options"]
        yield Sink(
            lambda records: node.call(
                "POST", ("topics", topic, "records"), {"records": records, "shard": shard}
            ),
            int(options["max.record.bytes"]),
            int(options["max.batch.bytes"]),
        )
        return
    with opened() as store:
        from firnmq.record.document import from_document

        handle = store.topic(topic)

        def write(records: list[Document]) -> list[Document]:
            written = handle.append([from_document(each) for each in records], shard=shard)
            return [
                {
                    "topic": topic,
                    "shard": part.shard,
                    "base_offset": part.base_offset,
                    "next_offset": part.next_offset,
                    "record_count": part.next_offset - part.base_offset,
                }
                for part in written
            ]

        config = handle.topic.config
        yield Sink(write, config.max_record_bytes, config.max_batch_bytes)


# Records ------------------------------------------------------------------------------------------


def _common(
    key: str | None, tags: tuple[str, ...], headers: tuple[str, ...], timestamp_ms: int | None
) -> Document:
    """What the command line says of every record."""
    common: Document = {"tags": list(tags), "headers": [_header(text) for text in headers]}
    if key is not None:
        common |= _field("key", os.fsencode(key))
    if timestamp_ms is not None:
        common["timestamp_ms"] = timestamp_ms
    return common


def _header(text: str) -> Document:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return {"name": name, **_field("value", os.fsencode(value))}


def _field(name: str, raw: bytes) -> Document:
    """Text, or base64 under a name that ends so."""
    try:
        return {name: raw.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_base64": b64encode(raw).decode("ascii")}


def _document_of(raw: bytes) -> Document:
    return _field("value", raw)


def _parsed(line: bytes) -> Document:
    from firnmq.record.document import from_document

    try:
        document = json.loads(line)
    except ValueError as error:
        raise InvalidRecord(f"not JSON: {error}") from error
    from_document(document)  # Raises InvalidRecord where the line's number is known.
    assert isinstance(document, dict)
    headers = document.get("headers")
    if isinstance(headers, dict):
        document["headers"] = [{"name": name, "value": text} for name, text in headers.items()]
    return document


def _with_common(record: Document, common: Document) -> Document:
    if "key" in common or "key_base64" in common:
        record.pop("key", None)
        record.pop("key_base64", None)
    joined = {name: [*(record.get(name) or ()), *common[name]] for name in ("tags", "headers")}
    return {**record, **common, **joined}


# Sending ------------------------------------------------------------------------------------------


def _send_file(source: str, layout: str, common: Document, sending: _Sending, topic: str) -> None:
    name = "stdin" if source == "-" else source
    if source == "-" and sys.stdin.isatty():
        click.echo("one record per line, stored as you type; Ctrl-D ends", err=True)
    parse = _parsed if layout == "json" else _document_of
    number = done_bytes = 0
    with (
        click.open_file(source, "rb") as file,
        InputLines(file, _LINE_BYTES_MAX) as lines,
        _progress(source, topic) as progress,
    ):
        try:
            for line in lines:
                if line is None:
                    sending.flush()  # `tail -f log | firn produce` stores what there is.
                    continue
                number += 1
                if len(line) > _LINE_BYTES_MAX:
                    raise InvalidRecord(f"is longer than {_LINE_BYTES_MAX:,} bytes")
                raw = line.removesuffix(b"\n").removesuffix(b"\r")
                record = _with_common(parse(raw), common)
                sending.check(record)
                done_bytes += len(line)
                if sending.add(record, len(line)):
                    progress(done_bytes)
            sending.flush()
        except KeyboardInterrupt:
            sending.flush()  # What was read is stored.
            raise
        except InvalidRecord as error:
            sending.flush()  # The records before the bad line are stored.
            raise BadInput(name, number, str(error), sending.record_count) from error
        except NodeRefused as error:
            reason = f"up to this line: {error}"
            raise BadInput(name, number, reason, sending.record_count) from error


def _progress(source: str, topic: str) -> AbstractContextManager[Callable[[int], None]]:
    if source == "-" and sys.stdin.isatty():  # A bar would be in the way of what is typed.
        return nullcontext(lambda _: None)
    path = Path(source)
    size = path.stat().st_size if source != "-" and path.is_file() else None
    return progress_bar(f"producing to {topic}", size)


class _Sending:
    """Gathers records into requests, and their places into ranges."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._records: list[Document] = []
        self._bytes = 0
        self._under_way = 0
        self._places: dict[int, list[Document]] = {}
        self.record_count = 0

    def check(self, record: Document) -> None:
        """InvalidRecord if the record is too large for the topic, before others are sent."""
        from firnmq.record import checked
        from firnmq.record.document import from_document

        checked(from_document(record), max_record_bytes=self._sink.record_bytes_max)

    def add(self, record: Document, size: int) -> bool:
        """Takes a record; whether that made a request."""
        size += _RECORD_OVERHEAD_BYTES
        limit = min(_BATCH_BYTES, self._sink.batch_bytes_max // 2)
        if self._bytes + size > limit:
            self.flush()
        self._records.append(record)
        self._bytes += size
        is_full = len(self._records) >= _BATCH_RECORDS or self._bytes >= limit
        if is_full:
            self.flush()
        return is_full

    def flush(self) -> None:
        if not self._records:
            return
        records, self._records, self._bytes = self._records, [], 0
        self._under_way = len(records)
        for place in self._sink.write(records):
            self._note(place)
        self._under_way = 0

    def summary(self) -> str:
        """For a user who stops the command: what of the last request is stored is not known."""
        text = f"{count(self.record_count, 'record')} stored"
        return text + (f", perhaps {self._under_way:,} more" if self._under_way else "")

    def show(self, topic: str, *, as_json: bool) -> None:
        for _, places in sorted(self._places.items()):
            for place in places:
                if as_json:
                    print_json(place)
                    continue
                base, end = place["base_offset"], place["next_offset"]
                where = f"offset {base}" if end == base + 1 else f"offsets {base} to {end - 1}"
                is_whole = place["record_count"] == end - base
                records = (
                    f"{count(place['record_count'], 'record')} {'at' if is_whole else 'among'}"
                )
                click.echo(f"{topic} shard {place['shard']}: {records} {where}")
        if not self.record_count and not as_json:
            click.echo("nothing to store: the input is empty", err=True)

    def _note(self, place: Document) -> None:
        places = self._places.setdefault(place["shard"], [])
        self.record_count += place["record_count"]
        follows = places and places[-1]["next_offset"] == place["base_offset"]
        if follows or len(places) >= _RANGES_MAX:
            places[-1]["next_offset"] = place["next_offset"]
            places[-1]["record_count"] += place["record_count"]
        else:
            places.append(place)
