"""`firn write`: one record from the command line, or many from a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from firnmq.cli.console import count, data_option, json_option, opened, print_json, progress_bar
from firnmq.cli.errors import BadInput
from firnmq.errors import InvalidArgument, InvalidRecord

if TYPE_CHECKING:
    from firnmq.adapter import Written
    from firnmq.record import NewRecord
    from firnmq.server import TopicHandle

_BATCH_RECORDS = 1000
_BATCH_BYTES = 4 * 1024 * 1024
"""An append takes up to so many records or bytes of input, whichever comes first."""
_LINE_BYTES_MAX = 128 * 1024 * 1024
"""A longer line cannot be a record, whatever the topic's limit: it is not read on."""


@click.command()
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", help="Key of every record written.")
@click.option("--tag", "tags", multiple=True, help="A tag; repeat for more.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Likewise.")
@click.option("--shard", type=int, help="Shard; otherwise that of the key, or one in turn.")
@click.option("--timestamp-ms", type=int, help="Time of every record; otherwise now.")
@click.option("--file", "source", metavar="FILE", help="Read records from a file; - is stdin.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="In a file: a value per line, or a JSON document as firn read --json prints it.",
)
@data_option
@json_option
def write(
    topic: str,
    value: str | None,
    key: str | None,
    tags: tuple[str, ...],
    headers: tuple[str, ...],
    shard: int | None,
    timestamp_ms: int | None,
    source: str | None,
    layout: str,
    data: Path,
    as_json: bool,
) -> None:
    """Write VALUE, or the records of a file, and say where they are."""
    if (value is None) == (source is None):
        raise click.UsageError("give either a VALUE or --file FILE (--file - for stdin)")
    from firnmq.record import NewRecord

    like = NewRecord(
        value=None if value is None else value.encode(),
        key=None if key is None else key.encode(),
        tags=tags,
        headers=tuple(_header(text) for text in headers),
        timestamp_ms=timestamp_ms,
    )
    if shard is not None and shard < 0:
        raise InvalidArgument("--shard", f"must be 0 or more, not {shard}")
    with opened(data) as store:
        written = _Written()
        handle = store.topic(topic)
        if source is None:
            written.add(handle.append(like, shard=shard))
        else:
            with click.open_file(source, "rb") as file:
                _copy(file, source, handle, shard, _parser(like, layout), written)
    written.show(topic, as_json=as_json)


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode()


def _parser(like: NewRecord, layout: str) -> Callable[[bytes], NewRecord]:
    """A function from a line to a record; what the command line says holds for all of them."""
    from dataclasses import replace

    from firnmq.cli.records import from_line

    if layout == "lines":
        return lambda line: replace(like, value=line)

    def parse(line: bytes) -> NewRecord:
        record = from_line(line)
        return replace(
            record,
            key=record.key if like.key is None else like.key,
            tags=(*record.tags, *like.tags),
            headers=(*record.headers, *like.headers),
            timestamp_ms=(record.timestamp_ms if like.timestamp_ms is None else like.timestamp_ms),
        )

    return parse


def _copy(
    file: IO[bytes],
    source: str,
    handle: TopicHandle,
    shard: int | None,
    parse: Callable[[bytes], NewRecord],
    written: _Written,
) -> None:
    from firnmq.record import checked

    name = "stdin" if source == "-" else source
    max_record_bytes = handle.topic.config.max_record_bytes
    done = gathered = 0
    batch: list[NewRecord] = []
    with progress_bar(f"writing to {handle.name}", _size(source)) as progress:
        for number, line in _lines(file):
            done += len(line)
            try:
                if len(line) > _LINE_BYTES_MAX:
                    raise InvalidRecord(f"is longer than {_LINE_BYTES_MAX:,} bytes")
                record = checked(parse(_stripped(line)), max_record_bytes=max_record_bytes)
            except InvalidRecord as error:
                if batch:  # What came before the bad line is stored, and said to be.
                    written.add(handle.append(batch, shard=shard))
                raise BadInput(name, number, str(error), written.record_count) from error
            batch.append(record)
            gathered += len(line)
            if len(batch) >= _BATCH_RECORDS or gathered >= _BATCH_BYTES:
                written.add(handle.append(batch, shard=shard))
                batch, gathered = [], 0
                progress(done)
        if batch:
            written.add(handle.append(batch, shard=shard))


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(_LINE_BYTES_MAX + 1):
        number += 1
        yield number, line


def _stripped(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _size(source: str) -> int | None:
    path = Path(source)
    return path.stat().st_size if source != "-" and path.is_file() else None


class _Written:
    """Where records went, ranges that follow each other made one."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[list[int]]] = {}
        self.record_count = 0

    def add(self, parts: tuple[Written, ...]) -> None:
        for part in parts:
            ranges = self._ranges.setdefault(part.shard, [])
            if ranges and ranges[-1][1] == part.base_offset:
                ranges[-1][1] = part.next_offset
            else:
                ranges.append([part.base_offset, part.next_offset])
            self.record_count += part.next_offset - part.base_offset

    def show(self, topic: str, *, as_json: bool) -> None:
        for shard, ranges in sorted(self._ranges.items()):
            for base, end in ranges:
                if as_json:
                    print_json(
                        {
                            "topic": topic,
                            "shard": shard,
                            "base_offset": base,
                            "next_offset": end,
                            "record_count": end - base,
                        }
                    )
                    continue
                place = f"offset {base}" if end == base + 1 else f"offsets {base} to {end - 1}"
                click.echo(f"{topic} shard {shard}: {count(end - base, 'record')} at {place}")
        if not self.record_count and not as_json:
            click.echo("nothing to write: the input is empty", file=sys.stderr)
