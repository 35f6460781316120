"""`firn tail`: the newest records of a topic on a running node."""

from __future__ import annotations

import sys
from typing import Any

import click

from firnmq.cli.console import json_option, print_json, safe_text, time_text
from firnmq.cli.node import NodeClient, running_node
from firnmq.errors import InvalidArgument

_RECORDS_MAX = 1000
_WAIT_MS = 20_000
_POLL_MS = 250


@click.command()
@click.argument("topic")
@click.option("--shard", type=int, help="Only this shard; all of them otherwise.")
@click.option("-n", "--max", "limit", type=int, default=10, show_default=True, help="Per shard.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more until Ctrl-C.")
@json_option
def tail(topic: str, shard: int | None, limit: int, follow: bool, as_json: bool) -> None:
    """Print the newest records of a topic."""
    if not 0 <= limit <= _RECORDS_MAX:
        raise InvalidArgument("--max", f"must be 0 to {_RECORDS_MAX:,}, not {limit:,}")
    node = running_node()
    shard_count = node.get("topics", topic)["shard_count"]
    shards = range(shard_count) if shard is None else [shard]
    ends = {}
    for seq in shards:
        page = _page(node, topic, seq, offset=-limit if limit else -1)
        if limit:
            _show(page, as_json)
        ends[seq] = page["next_offset"]
    try:
        while follow:
            # One shard can be waited for; several are looked at in turn.
            wait_ms = _WAIT_MS if len(ends) == 1 else _POLL_MS // len(ends)
            for seq, end in ends.items():
                page = _page(node, topic, seq, offset=end, wait_ms=wait_ms)
                _show(page, as_json)
                ends[seq] = page["next_offset"]
            sys.stdout.flush()
    except KeyboardInterrupt:
        return


def _page(node: NodeClient, topic: str, seq: int, **query: int) -> dict[str, Any]:
    page: dict[str, Any] = node.get(
        "topics", topic, "records", shard=seq, max=_RECORDS_MAX, **query
    )
    return page


def _show(page: dict[str, Any], as_json: bool) -> None:
    for record in page["records"]:
        if as_json:
            print_json(record)
            continue
        columns = [
            f"{record['shard']}:{record['offset']}",
            time_text(record["timestamp_ms"]),
            _field(record, "key"),
            _field(record, "value"),
            *(f"#{safe_text(tag)}" for tag in record["tags"]),
        ]
        click.echo("  ".join(columns))


def _field(record: dict[str, Any], name: str) -> str:
    """Text, or base64 where the bytes are none."""
    return safe_text(record.get(name, record.get(f"{name}_base64")))
