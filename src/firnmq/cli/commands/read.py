"""`firn read`: records by offset, key, tag or time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from firnmq.cli.console import (
    asking_store,
    config_option,
    count,
    json_option,
    parse_time,
    tell_when_stopped,
)
from firnmq.cli.errors import NodeNeeded
from firnmq.cli.records import Document, RecordPrinter
from firnmq.cli.target import chosen_directory, chosen_node, opened, target_options
from firnmq.cli.topic_argument import topic_argument
from firnmq.errors import InvalidArgument

if TYPE_CHECKING:
    from firnmq.server import Store

_FORMAT_HELP = (
    "Print records like this: %t topic, %p shard, %o offset, %T time in ms, %k key, %v or %s "
    "value, %K and %S their lengths, %g tags, %h headers, %% a percent sign, \\n, \\t, \\0."
)
_TIME_HELP = (
    "ISO 8601 (UTC unless it names a zone), milliseconds since 1970, or an age: 90s, 15m, 2h, 7d."
)

_LIMIT = click.IntRange(min=1)


@click.command()
@topic_argument()
@click.option("--shard", type=int, help="Only this shard; all of them otherwise.")
@click.option(
    "--offset",
    "place",
    metavar="OFFSET",
    default="start",
    show_default=True,
    help="First offset to read, or -N for the last N records of each shard, or start, or end.",
)
@click.option("--key", help="The newest record of this key, whichever shard has it.")
@click.option("--key-base64", metavar="BASE64", help="The same for a key that is not text.")
@click.option("--all", "all_versions", is_flag=True, help="With a key: all its records.")
@click.option("--tag", help="Only records with this tag.")
@click.option("--since", metavar="TIME", help=f"Only records of this time or later: {_TIME_HELP}")
@click.option("--until", metavar="TIME", help="Only records of an earlier time.")
@click.option("-n", "--max", "limit", type=_LIMIT, help="At most this many records; all otherwise.")
@click.option("--follow", is_flag=True, help="Wait for more until Ctrl-C; needs a node.")
@click.option("-f", "--format", "layout", metavar="FORMAT", help=_FORMAT_HELP)
@target_options
@config_option
@json_option
def read(config_path: Path | None, **options: Any) -> None:
    """Print a topic's records, from the start of each shard unless told otherwise.

    Shards are printed one after the other. Since records may be stored later than their
    timestamps say, --until looks at everything that is stored after --since.
    """
    topic, query = options["topic"], query_of(options)
    printer = printer_of(options, sys.stdout.buffer, is_terminal=sys.stdout.isatty())
    tell_when_stopped(lambda: f"{count(printer.record_count, 'record')} read")
    node = chosen_node(changes=False)
    if node is not None:
        printer.show_lines(node.lines("topics", topic, "records", **query))
        return
    if options["follow"]:
        raise NodeNeeded(str(chosen_directory()))
    with asking_store(), opened(config_path) as store:
        printer.show(_documents(store, topic, query))


def query_of(options: dict[str, Any]) -> dict[str, str]:
    """The options as parameters of the HTTP interface."""
    since, until = (
        None if options[name] is None else parse_time(f"--{name}", options[name])
        for name in ("since", "until")
    )
    for reason in _contradictions(options, since, until):
        raise click.UsageError(reason)
    query = {
        "shard": options["shard"],
        "offset": _offset(options["place"]),
        "key": options["key"],
        "key_base64": options["key_base64"],
        "all": "true" if options["all_versions"] else None,
        "tag": options["tag"],
        "since_ms": since,
        "until_ms": until,
        "max": options["limit"],
        "follow": "true" if options["follow"] else None,
    }
    return {name: str(value) for name, value in query.items() if value is not None}


def _contradictions(options: dict[str, Any], since: int | None, until: int | None) -> Iterator[str]:
    """Which options exclude each other."""
    has_key = options["key"] is not None or options["key_base64"] is not None
    is_newest = has_key and not options["all_versions"]
    has_offset = options["place"] != "start"
    if options["layout"] is not None and options["as_json"]:
        yield "--format and --json cannot be used together"
    if options["key"] is not None and options["key_base64"] is not None:
        yield "--key and --key-base64 cannot be used together"
    if has_key and options["tag"] is not None:
        yield "--key and --tag cannot be used together"
    if options["all_versions"] and not has_key:
        yield "--all needs --key"
    if is_newest and (has_offset or options["follow"] or since is not None or until is not None):
        yield "--key with --offset, --since, --until or --follow needs --all"
    if since is not None and has_offset:
        yield "--since and --offset cannot be used together"
    if since is not None and until is not None and since >= until:
        yield f"no time lies between --since {options['since']} and --until {options['until']}"


def printer_of(options: dict[str, Any], out: BinaryIO, *, is_terminal: bool) -> RecordPrinter:
    return RecordPrinter(options["layout"], options["as_json"], out, is_terminal=is_terminal)


def _offset(place: str) -> str | None:
    if place == "start":
        return None
    digits = place.removeprefix("-")
    if place != "end" and not (digits.isdecimal() and digits.isascii()):
        raise InvalidArgument("--offset", f"{place!r} is no offset, -N, start or end")
    return place


def _documents(store: Store, topic: str, query: dict[str, str]) -> Iterator[list[Document]]:
    """What a node would send, from a directory that this process has open."""
    from firnmq.disk import run_blocking
    from firnmq.record.document import to_document
    from firnmq.server.reading import read_records, reading_of

    found_topic = store.topic(topic).topic
    pages = read_records(store.local.manager, found_topic, reading_of(query))
    while True:
        try:
            found = run_blocking(pages.__anext__())
        except StopAsyncIteration:
            return
        yield [
            to_document(record, topic=topic, shard=found.shard, config=found_topic.config)
            for record in found.records
        ]
