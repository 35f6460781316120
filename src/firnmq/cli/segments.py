"""`firn segments`: the segments of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firnmq.cli.console import data_option, json_option, opened, print_json, print_table, time_text

if TYPE_CHECKING:
    from firnmq.engines import ShardStatus


@click.command()
@click.argument("topic")
@click.option("--shard", type=int, help="Only this shard; all of them otherwise.")
@data_option
@json_option
def segments(topic: str, shard: int | None, data: Path, as_json: bool) -> None:
    """Show a topic's segments: their offsets, bytes, states and checksums."""
    from firnmq.cli.bounds import chosen_shards

    with opened(data) as store:
        handle = store.topic(topic)
        rows = [
            row
            for seq in chosen_shards(handle, shard)
            for row in _rows(topic, seq, handle.status(seq))
        ]
    if as_json:
        for row in rows:
            print_json(row)
        return
    headings = ("SHARD", "SEGMENT", "STATE", "START", "END", "BYTES", "CRC32C", "CREATED")
    print_table(
        headings,
        [
            (
                row["shard"],
                row["segment_seq"],
                row["state"],
                row["base_offset"],
                row["end_offset"],
                row["length_bytes"],
                row["crc"] or "-",
                time_text(int(str(row["created_ms"]))),
            )
            for row in rows
        ],
    )


def _rows(topic: str, seq: int, status: ShardStatus) -> list[dict[str, object]]:
    from firnmq.engines.segments import SegmentState

    active_bytes = status.length_bytes
    rows: list[dict[str, object]] = []
    for meta in status.segments:
        is_sealed = meta.state is SegmentState.SEALED
        active_bytes -= meta.length if is_sealed else 0
        rows.append(
            {
                "topic": topic,
                "shard": seq,
                "segment_seq": meta.seq,
                "state": meta.state.value,
                "medium": meta.medium.value,
                "base_offset": meta.base_offset,
                "end_offset": meta.end_offset if is_sealed else status.end_offset,
                "length_bytes": meta.length if is_sealed else active_bytes,
                "crc": f"{meta.crc:08x}" if is_sealed else None,
                "created_ms": meta.created_ms,
                "sealed_ms": meta.sealed_ms if is_sealed else None,
            }
        )
    return rows
