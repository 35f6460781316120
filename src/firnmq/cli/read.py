"""`firn read`: records by offset, key, tag or time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firnmq.cli.console import (
    config_option,
    data_option,
    json_option,
    opened,
    safe_text,
    time_text,
)
from firnmq.errors import InvalidArgument

if TYPE_CHECKING:
    from firnmq.cli.records import Placed
    from firnmq.engines import Page
    from firnmq.server import TopicHandle

_PAGE_RECORDS = 1000
_POLL_S = 0.2
_VALUE_CHARS_MAX = 1000
"""Characters of a value shown on a terminal; in a pipe it is whole."""
_FORMAT_HELP = (
    "Print records like this: %t topic, %p shard, %o offset, %T time in ms, %k key, %v or %s "
    "value, %K and %S their lengths, %g tags, %h headers, %% a percent sign, \\n, \\t, \\0."
)


@click.command()
@click.argument("topic")
@click.option("--shard", type=int, help="Only this shard; all of them otherwise.")
@click.option("--offset", type=int, help="From this offset on.")
@click.option("--key", help="The newest record of this key.")
@click.option("--tag", help="Records that have this tag.")
@click.option("--time", "since", metavar="TIME", help="From this time on: ISO 8601 or ms.")
@click.option("--max", "limit", type=int, help="At most this many records; all otherwise.")
@click.option("--follow", is_flag=True, help="Wait for more until Ctrl-C.")
@click.option("-f", "--format", "layout", metavar="FORMAT", help=_FORMAT_HELP)
@data_option
@config_option
@json_option
def read(
    topic: str,
    shard: int | None,
    offset: int | None,
    key: str | None,
    tag: str | None,
    since: str | None,
    limit: int | None,
    follow: bool,
    layout: str | None,
    data: Path,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Print a topic's records, from the start of each shard unless told otherwise.

    With --follow the command goes on waiting. It has the data directory to itself meanwhile, so
    it shows only what this process sees: nothing can be written to the directory until it ends.
    """
    given = [
        name
        for name, value in (("offset", offset), ("key", key), ("tag", tag), ("time", since))
        if value is not None
    ]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} cannot be used together")
    if layout is not None and as_json:
        raise click.UsageError("--format and --json cannot be used together")
    if follow and key is not None:
        raise click.UsageError("--follow and --key cannot be used together")
    if limit is not None and limit < 1:
        raise InvalidArgument("--max", f"must be 1 or more, not {limit}")
    since_ms = None if since is None else parse_time(since)
    with opened(data, config_path) as store:
        handle = store.topic(topic)
        show = _printer(handle, layout, as_json)
        if key is not None:
            _show_key(handle, key, shard, show)
            return
        starts = _starts(handle, shard, offset, since_ms)
        _Reading(handle, tag, limit, show).run(starts, follow=follow)


def parse_time(text: str) -> int:
    """Milliseconds from digits or from ISO 8601; without a zone it is UTC."""
    if text.isdecimal() and text.isascii():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            "--time", f"{text!r} is neither milliseconds nor like 2031-05-04T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _starts(
    handle: TopicHandle, shard: int | None, offset: int | None, since_ms: int | None
) -> dict[int, int]:
    """Each shard to read with the offset to begin at."""
    from firnmq.cli.bounds import chosen_shards, shard_bounds

    shards = chosen_shards(handle, shard)
    if offset is not None:
        if len(shards) > 1:
            reason = f"needs --shard, since {handle.name} has {len(shards)} shards"
            raise InvalidArgument("--offset", reason)
        if offset < 0:
            raise InvalidArgument("--offset", f"must be 0 or more, not {offset}")
        return {shards[0]: offset}
    if since_ms is not None:
        return {seq: handle.offset_at(since_ms, shard=seq) for seq in shards}
    return {seq: shard_bounds(handle, seq).start_offset for seq in shards}


def _show_key(
    handle: TopicHandle, key: str, shard: int | None, show: Callable[[Placed], None]
) -> None:
    from firnmq.adapter.manager import shard_of_key
    from firnmq.cli.records import Placed

    seq = shard_of_key(key.encode(), handle.topic.shard_count) if shard is None else shard
    show(Placed(handle.name, seq, handle.read_by_key(key, shard=seq)))


class _Reading:
    """Goes through shards page by page until a limit is reached."""

    def __init__(
        self,
        handle: TopicHandle,
        tag: str | None,
        limit: int | None,
        show: Callable[[Placed], None],
    ) -> None:
        self._handle = handle
        self._tag = tag
        self._left = limit
        self._show = show

    def run(self, starts: dict[int, int], *, follow: bool) -> None:
        try:
            while True:
                for seq, start in starts.items():
                    starts[seq] = self._read_shard(seq, start)
                if not follow or self._left == 0:
                    return
                sys.stdout.flush()
                _wait(_POLL_S)
        except KeyboardInterrupt:
            if not follow:
                raise

    def _read_shard(self, seq: int, offset: int) -> int:
        """Shows the shard's records to its present end; returns the offset after them."""
        from firnmq.cli.records import Placed

        while self._left != 0:
            page = self._page(seq, offset)
            for record in page.records():
                self._show(Placed(self._handle.name, seq, record))
            if self._left is not None:
                self._left -= len(page)
            if page.next_offset == offset:
                break
            offset = page.next_offset
        return offset

    def _page(self, seq: int, offset: int) -> Page:
        wanted = _PAGE_RECORDS if self._left is None else min(self._left, _PAGE_RECORDS)
        if self._tag is not None:
            return self._handle.read_by_tag(self._tag, offset, shard=seq, max_records=wanted)
        return self._handle.read(offset, shard=seq, max_records=wanted)


def _wait(seconds: float) -> None:
    from time import sleep

    sleep(seconds)


def _printer(handle: TopicHandle, layout: str | None, as_json: bool) -> Callable[[Placed], None]:
    from firnmq.cli.records import parse_format, to_document

    is_terminal = sys.stdout.isatty()
    if as_json:
        from firnmq.cli.console import print_json

        config = handle.topic.config
        return lambda placed: print_json(to_document(placed, config))
    if layout is not None:
        formatted = parse_format(layout)
        if is_terminal:
            return lambda placed: click.echo(_safe_lines(formatted(placed)), nl=False)
        return lambda placed: click.echo(formatted(placed), nl=False)
    return lambda placed: click.echo("  ".join(_columns(placed, is_terminal)))


def _columns(placed: Placed, is_terminal: bool) -> Iterator[str]:
    record = placed.record
    yield f"{placed.shard}:{record.offset}"
    yield time_text(record.timestamp_ms)
    yield safe_text(record.key)
    value = safe_text(record.value)
    if is_terminal and len(value) > _VALUE_CHARS_MAX:
        value = f"{value[:_VALUE_CHARS_MAX]}… ({len(record.value or b''):,} bytes)"
    yield value
    if record.tags:
        yield "#" + " #".join(map(safe_text, record.tags))


def _safe_lines(raw: bytes) -> str:
    """Formatted bytes for a terminal: line ends and tabs stay, the rest cannot do harm."""
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(each if each in "\n\t" else safe_text(each) for each in text)
