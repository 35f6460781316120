"""`firn topic`: make, list, describe and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import (
    confirm,
    count,
    json_option,
    print_json,
    print_table,
    time_text,
)
from firnmq.cli.target import chosen_node, opened, target_options
from firnmq.cli.topic_argument import topic_argument

if TYPE_CHECKING:
    from firnmq.server import TopicHandle

_STORAGE_TYPES = {
    "memory": "EngineMemory",
    "rocksdb": "EngineRocksDB",
    "segment": "EngineSegment",
}

SHARD_COLUMNS = {
    "shard": "SHARD",
    "start_offset": "START",
    "end_offset": "END",
    "quorum_mark": "QUORUM MARK",
    "length_bytes": "BYTES",
    "segment_count": "SEGMENTS",
    "store_only_bytes": "ONLY IN STORE",
    "failure": "FAILURE",
}
"""Fields of a shard's summary, and what the table of a description calls them."""


@click.group()
@target_options
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--shards", type=click.IntRange(min=1), default=1, show_default=True, help="Number of shards."
)
@click.option(
    "--storage",
    default=None,
    metavar="TYPE",
    shell_complete=lambda *given: [each for each in _STORAGE_TYPES if each.startswith(given[2])],
    help="memory, rocksdb, segment (the default), or the name of an installed storage adapter.",
)
@click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    metavar="OPTION=VALUE",
    help="A topic option such as segment.bytes=1048576; repeat for more.",
)
@target_options
@json_option
def create(
    name: str,
    shards: int,
    storage: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a topic, and the data directory if it does not exist."""
    from firnmq.config import TopicConfig, check_topic_name
    from firnmq.errors import InvalidArgument

    chosen = dict(_pair(option) for option in options)
    if storage is not None and chosen.setdefault("storage.type", storage) != storage:
        raise InvalidArgument("--storage", "differs from storage.type of --option; give one")
    if "storage.type" in chosen:
        kind = chosen["storage.type"]
        chosen["storage.type"] = _STORAGE_TYPES.get(kind.lower(), kind)
    # Checked before the directory is made, so that a mistake leaves nothing behind.
    check_topic_name(name)
    TopicConfig.from_options(chosen).check_new()
    node = chosen_node(changes=True)
    if node is not None:
        wanted = {"topic": name, "shard_count": shards, "options": chosen}
        made = node.call("POST", ("topics",), wanted)
        has_store = node.get("node")["tiering"] is not None
    else:
        with opened(create=True) as store:
            made = _summary(store.create_topic(name, shards=shards, options=chosen))
            has_store = store.local.tier is not None
    if as_json:
        print_json(made)
    else:
        kept = made["storage_type"]
        click.echo(f"created topic {name}: {count(made['shard_count'], 'shard')}, {kept}")
    if chosen.get("tiering") == "on" and not has_store:
        whose = "the node" if node is not None else "this data directory"
        click.echo(
            f"warning: tiering=on, but {whose} has no object store: segments stay here and are "
            "copied nowhere until url in [tiering], or FIRN_TIERING_URL, names one",
            err=True,
        )


@topic.command(name="list")
@target_options
@json_option
def list_topics(as_json: bool) -> None:
    """Show all topics."""
    node = chosen_node(changes=False)
    if node is not None:
        topics = node.get("topics")
    else:
        with opened() as store:
            topics = [_summary(store.topic(each.name)) for each in store.topics()]
    if as_json:
        for each in topics:
            print_json(each)
        return
    if not topics:
        click.echo("no topics yet; make one with: firn topic create NAME", err=True)
        return
    print_table(
        ("TOPIC", "SHARDS", "STORAGE", "CREATED"),
        [
            (
                each["topic"],
                each["shard_count"],
                each["storage_type"],
                time_text(each["created_ms"]),
            )
            for each in topics
        ],
    )


@topic.command()
@topic_argument("name")
@click.option("--first", type=int, default=0, help="The first shard to show.")
@click.option("--count", type=int, default=None, help="How many shards to show, at most 1,000.")
@target_options
@json_option
def describe(name: str, first: int, count: int | None, as_json: bool) -> None:
    """Show a topic's options, and the offsets and sizes of its shards."""
    node = chosen_node(changes=False)
    if node is not None:
        found = node.get("topics", name, first=first, count=count)
    else:
        with opened() as store:
            found = _description(store.topic(name), first, count)
    if as_json:
        print_json(found)
        return
    click.echo(f"topic {name}, id {found['topic_id']}, created {time_text(found['created_ms'])}")
    click.echo()
    options = found["options"].items()
    print_table(("OPTION", "VALUE"), [(option, value or "none") for option, value in options])
    click.echo()
    _print_shards(found["shards"])
    end = first + len(found["shards"])
    if end < found["shard_count"]:
        left = found["shard_count"] - end
        click.echo(f"{left:,} more shards; see them with --first {end}", err=True)


@topic.command()
@topic_argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@target_options
@json_option
def delete(name: str, yes: bool, as_json: bool) -> None:
    """Delete a topic with all its records."""
    node = chosen_node(changes=True)
    if node is not None:
        _confirm(name, node.get("topics", name)["shard_count"], yes)
        node.call("DELETE", ("topics", name))
    else:
        with opened() as store:
            _confirm(name, store.topic(name).topic.shard_count, yes)
            store.delete_topic(name)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        click.echo(f"deleted topic {name}")


def _print_shards(shards: list[dict[str, Any]]) -> None:
    """Columns that no shard has anything for are left out, but for those of every topic."""
    shown = [
        name
        for name in SHARD_COLUMNS
        if name != "quorum_mark" or any(each[name] is not None for each in shards)
    ]
    headings = [SHARD_COLUMNS[name] for name in shown]
    print_table(headings, [tuple(each[name] for name in shown) for each in shards])


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{option!r} is not OPTION=VALUE", param_hint="--option")
    return name, value


def _confirm(name: str, shard_count: int, yes: bool) -> None:
    if not yes:
        shards = count(shard_count, "shard")
        confirm(f"Delete topic {name} with {shards} and all records?")


def _summary(handle: TopicHandle) -> dict[str, Any]:
    import msgspec

    from firnmq.server.documents import TopicSummary

    summary: dict[str, Any] = msgspec.to_builtins(TopicSummary.of(handle.topic))
    return summary


def _description(handle: TopicHandle, first: int, count: int | None) -> dict[str, Any]:
    import msgspec

    from firnmq.cli.bounds import has_engine, shard_bounds
    from firnmq.errors import Corruption, StorageFailed
    from firnmq.server.described import described_shards
    from firnmq.server.documents import ShardSummary, TopicDescription

    shards = []
    for seq in described_shards(handle.topic.shard_count, first, count):
        if has_engine(handle):
            try:
                shards.append(ShardSummary.of(seq, handle.status(seq)))
            except (Corruption, StorageFailed) as error:
                shards.append(ShardSummary(shard=seq, failure=str(error)))
        else:
            bounds = shard_bounds(handle, seq)
            shards.append(
                ShardSummary(
                    shard=seq, start_offset=bounds.start_offset, end_offset=bounds.end_offset
                )
            )
    described: dict[str, Any] = msgspec.to_builtins(
        TopicDescription.described(handle.topic, shards)
    )
    return described
