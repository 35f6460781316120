"""`firn segments`: the segments of a topic."""

from __future__ import annotations

from typing import Any

import click

from firnmq.cli.console import json_option, print_json, print_table, time_text
from firnmq.cli.target import chosen_node, opened, target_options
from firnmq.cli.topic_argument import topic_argument


@click.command()
@topic_argument()
@click.option("--shard", type=int, help="Only this shard; all of them otherwise.")
@target_options
@json_option
def segments(topic: str, shard: int | None, as_json: bool) -> None:
    """Show a topic's segments: their offsets, bytes, states and checksums."""
    node = chosen_node(changes=False)
    if node is not None:
        rows = node.get("topics", topic, "segments", shard=shard)
    else:
        rows = segment_rows(topic, shard)
    if as_json:
        for row in rows:
            print_json(row)
        return
    headings = ("SHARD", "SEGMENT", "STATE", "WHERE", "START", "END", "BYTES", "CRC32C", "CREATED")
    print_table(
        headings,
        [
            (
                row["shard"],
                row["segment_seq"],
                row["state"],
                _where(row),
                row["base_offset"],
                row["end_offset"],
                row["length_bytes"],
                row["crc"] or "-",
                time_text(row["created_ms"]),
            )
            for row in rows
        ],
    )


def _where(row: dict[str, Any]) -> str:
    """What has the whole segment: nodes, or the data directory, and the object store."""
    if not row["is_local"]:
        return "store"
    nodes = row["holders"]
    here = f"node {', '.join(map(str, nodes))}" if nodes else "here"
    return f"{here}, store" if row["state"] == "tiered" else here


def segment_rows(topic: str, shard: int | None) -> list[dict[str, Any]]:
    import msgspec

    from firnmq.cli.bounds import chosen_shards
    from firnmq.server.documents import segments_of

    with opened() as store:
        handle = store.topic(topic)
        return [
            msgspec.to_builtins(segment)
            for seq in chosen_shards(handle, shard)
            for segment in segments_of(topic, seq, handle.status(seq))
        ]
