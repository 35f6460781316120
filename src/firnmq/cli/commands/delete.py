"""`firn delete`: records by key, by offset, or all before one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import (
    config_option,
    confirm,
    count,
    json_option,
    print_json,
    safe_text,
)
from firnmq.cli.target import chosen_node, opened, target_options
from firnmq.cli.topic_argument import topic_argument

if TYPE_CHECKING:
    from firnmq.server.documents import Deletion

_TIMEOUT_S = 600.0
"""A key is looked for in all shards, and shards that are not open yet are opened for it."""
_OFFSETS_SHOWN_MAX = 20


@click.command()
@topic_argument()
@click.option("--key", help="All records that this key has so far.")
@click.option("--key-base64", metavar="BASE64", help="The same for a key that is not text.")
@click.option(
    "--offset",
    "offsets",
    type=int,
    multiple=True,
    help="The record at this offset; repeat for more.",
)
@click.option("--before", type=int, metavar="OFFSET", help="All records before this offset.")
@click.option(
    "--shard",
    type=int,
    help="Shard of the records. --offset and --before need it if the topic has several shards; "
    "--key looks in all shards without it.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@target_options
@config_option
@json_option
def delete(
    topic: str,
    key: str | None,
    key_base64: str | None,
    offsets: tuple[int, ...],
    before: int | None,
    shard: int | None,
    yes: bool,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Delete records of a topic; no read shows them from then on.

    It is durable once the command ends, and holds for what is in an object store too. A lake table
    loses the records of a key or at an offset with the next `firn lake sync`; what --before deletes
    stays in it.
    """
    given = [
        name
        for name, is_given in (
            ("--key", key is not None),
            ("--key-base64", key_base64 is not None),
            ("--offset", bool(offsets)),
            ("--before", before is not None),
        )
        if is_given
    ]
    if len(given) != 1:
        raise click.UsageError("give one of --key, --key-base64, --offset and --before")
    wanted = _wanted(key, key_base64, offsets, before, shard)
    node = chosen_node(changes=True)
    if node is not None:
        import msgspec

        if not yes:
            _confirm(topic, node.get("topics", topic)["shard_count"], wanted)
        node.set_timeout(_TIMEOUT_S)
        done = node.call("POST", ("topics", topic, "deletions"), msgspec.to_builtins(wanted))
    else:
        done = _delete_in(config_path, topic, wanted, yes)
    if as_json:
        for each in done:
            print_json(each)
    else:
        _show(topic, wanted, done)


def _wanted(
    key: str | None,
    key_base64: str | None,
    offsets: tuple[int, ...],
    before: int | None,
    shard: int | None,
) -> Deletion:
    from base64 import b64encode

    from firnmq.server.documents import Deletion

    raw = None if key is None else os.fsencode(key)
    if raw is not None:
        try:
            key = raw.decode()
        except UnicodeDecodeError:  # The shell's bytes are the key's bytes.
            key, key_base64 = None, b64encode(raw).decode()
    return Deletion(
        key=key, key_base64=key_base64, offsets=list(offsets) or None, before=before, shard=shard
    )


def _delete_in(
    config_path: Path | None, topic: str, wanted: Deletion, yes: bool
) -> list[dict[str, Any]]:
    with opened(config_path) as store:
        import msgspec

        from firnmq.disk import run_blocking
        from firnmq.server.deletion import delete_records

        shard_count = store.topic(topic).topic.shard_count
        if not yes:
            _confirm(topic, shard_count, wanted)
        done = run_blocking(delete_records(store.local.manager, topic, wanted))
        return [msgspec.to_builtins(each) for each in done]


def _confirm(topic: str, shard_count: int, wanted: Deletion) -> None:
    shard = 0 if wanted.shard is None and shard_count == 1 else wanted.shard
    where = f"all {shard_count:,} shards" if shard is None else f"shard {shard}"
    confirm(f"Delete {_records(wanted)} from topic {topic}, {where}?")


def _records(wanted: Deletion) -> str:
    if wanted.offsets is not None:
        one = "the record" if len(wanted.offsets) == 1 else "the records"
        return f"{one} at {_places(wanted.offsets)}"
    if wanted.before is not None:
        return f"all records before offset {wanted.before}"
    return f"all records of key {_shown_key(wanted)}"


def _shown_key(wanted: Deletion) -> str:
    return safe_text(wanted.key) if wanted.key is not None else f"{wanted.key_base64} (base64)"


def _places(offsets: list[int]) -> str:
    shown = ", ".join(str(offset) for offset in offsets[:_OFFSETS_SHOWN_MAX])
    more = len(offsets) - _OFFSETS_SHOWN_MAX
    rest = f" and {more:,} more" if more > 0 else ""
    return f"{'offset' if len(offsets) == 1 else 'offsets'} {shown}{rest}"


def _show(topic: str, wanted: Deletion, done: list[dict[str, Any]]) -> None:
    touched = [each for each in done if each["deleted"] is not False]
    for each in touched:
        click.echo(f"{topic} shard {each['shard']}: {_outcome(wanted, each)}")
    if not touched:
        click.echo(f"nothing in the log to delete: {_absence(topic, wanted, done)}")


def _absence(topic: str, wanted: Deletion, done: list[dict[str, Any]]) -> str:
    place = f"shard {done[0]['shard']} of {topic}"
    if wanted.offsets is not None:
        return f"what {place} had at {_places(wanted.offsets)} was gone before"
    if wanted.before is not None:
        return f"{place} starts at {done[0]['start_offset']}"
    if len(done) > 1:
        return f"no shard of {topic} has records of key {_shown_key(wanted)}"
    return f"{place} has no records of key {_shown_key(wanted)}"


def _outcome(wanted: Deletion, done: dict[str, Any]) -> str:
    if done["deleted"] is None:
        return f"asked its storage to delete {_records(wanted)}, which does not tell what it had"
    if done["offsets"] is not None:
        deleted = f"deleted {count(len(done['offsets']), 'record')} at {_places(done['offsets'])}"
        gone = len(set(wanted.offsets or ())) - len(done["offsets"])
        return deleted + (f"; {gone:,} more had gone before" if gone else "")
    if done["start_before"] is not None:
        return f"starts at {done['start_offset']}, before at {done['start_before']}"
    return f"deleted the records of key {_shown_key(wanted)} below offset {done['key_below']}"
