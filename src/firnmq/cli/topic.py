"""`firn topic`: make, list, describe and delete topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firnmq.cli.console import (
    count,
    data_option,
    json_option,
    opened,
    print_json,
    print_table,
    time_text,
)

if TYPE_CHECKING:
    from firnmq.adapter import Topic
    from firnmq.server import TopicHandle

_STORAGE_TYPES = {
    "memory": "EngineMemory",
    "rocksdb": "EngineRocksDB",
    "segment": "EngineSegment",
}


@click.group()
def topic() -> None:
    """Make, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--shards", type=int, default=1, show_default=True, help="Number of shards.")
@click.option(
    "--storage",
    default=None,
    metavar="TYPE",
    help="memory, rocksdb, segment (the default), or the name of an installed storage adapter.",
)
@click.option(
    "--config",
    "options",
    multiple=True,
    metavar="OPTION=VALUE",
    help="A topic option such as segment.bytes=1048576; repeat for more.",
)
@data_option
@json_option
def create(
    name: str,
    shards: int,
    storage: str | None,
    options: tuple[str, ...],
    data: Path,
    as_json: bool,
) -> None:
    """Make a topic; the data directory is made too if it is not there."""
    from firnmq.config import TopicConfig, check_topic_name
    from firnmq.errors import InvalidArgument

    chosen = dict(_pair(option) for option in options)
    if storage is not None and chosen.setdefault("storage.type", storage) != storage:
        raise InvalidArgument("--storage", "differs from storage.type of --config; give one")
    if "storage.type" in chosen:
        kind = chosen["storage.type"]
        chosen["storage.type"] = _STORAGE_TYPES.get(kind.lower(), kind)
    # Checked before the directory is made, so that a mistake leaves nothing behind.
    check_topic_name(name)
    TopicConfig.from_options(chosen)
    with opened(data, create=True) as store:
        made = store.create_topic(name, shards=shards, options=chosen).topic
    if as_json:
        print_json(_summary(made))
    else:
        kept = made.config.storage_type
        click.echo(f"created topic {name}: {count(made.shard_count, 'shard')}, {kept}")


@topic.command(name="list")
@data_option
@json_option
def list_topics(data: Path, as_json: bool) -> None:
    """Show all topics."""
    with opened(data) as store:
        topics = store.topics()
    if as_json:
        for each in topics:
            print_json(_summary(each))
        return
    if not topics:
        click.echo("no topics yet; make one with: firn topic create NAME", err=True)
        return
    print_table(
        ("TOPIC", "SHARDS", "STORAGE", "CREATED"),
        [
            (each.name, each.shard_count, each.config.storage_type, time_text(each.created_ms))
            for each in topics
        ],
    )


@topic.command()
@click.argument("name")
@data_option
@json_option
def describe(name: str, data: Path, as_json: bool) -> None:
    """Show a topic's options and where its shards stand."""
    with opened(data) as store:
        handle = store.topic(name)
        found = handle.topic
        rows = [_shard_row(handle, seq) for seq in range(found.shard_count)]
    if as_json:
        document = _summary(found)
        document["options"] = found.config.options()
        document["shards"] = rows
        print_json(document)
        return
    click.echo(f"topic {found.name}, id {found.topic_id}, created {time_text(found.created_ms)}")
    click.echo()
    options = found.config.options().items()
    print_table(("OPTION", "VALUE"), [(option, value or "no limit") for option, value in options])
    click.echo()
    headings = ("SHARD", "START", "END", "BYTES", "SEGMENTS", "FAILURE")
    print_table(headings, [tuple(row.values()) for row in rows])


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_option
@json_option
def delete(name: str, yes: bool, data: Path, as_json: bool) -> None:
    """Delete a topic with all its records."""
    with opened(data) as store:
        found = store.topic(name).topic
        if not yes:
            shards = count(found.shard_count, "shard")
            click.confirm(f"Delete topic {name} with {shards} and all records?", abort=True)
        store.delete_topic(name)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        click.echo(f"deleted topic {name}")


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{option!r} is not OPTION=VALUE", param_hint="--config")
    return name, value


def _summary(found: Topic) -> dict[str, object]:
    return {
        "topic": found.name,
        "topic_id": found.topic_id,
        "shard_count": found.shard_count,
        "storage_type": found.config.storage_type,
        "created_ms": found.created_ms,
    }


def _shard_row(handle: TopicHandle, seq: int) -> dict[str, object]:
    from firnmq.cli.bounds import has_engine, shard_bounds

    bounds = shard_bounds(handle, seq)
    row: dict[str, object] = {
        "shard": seq,
        "start_offset": bounds.start_offset,
        "end_offset": bounds.end_offset,
        "length_bytes": None,
        "segment_count": None,
        "failure": None,
    }
    if has_engine(handle):
        status = handle.status(seq)
        row["length_bytes"] = status.length_bytes
        row["segment_count"] = len(status.segments)
        row["failure"] = status.failure
    return row
