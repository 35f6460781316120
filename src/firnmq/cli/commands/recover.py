"""`firn recover`: a data directory out of an object store."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firnmq.cli.console import (
    activity,
    asking_store,
    config_option,
    count,
    json_option,
    print_json,
    print_table,
    safe_text,
    tell_when_stopped,
    time_text,
)
from firnmq.cli.target import directory_option, unserved_directory

if TYPE_CHECKING:
    from firnmq.server.recovery import Recovery


@click.command()
@click.option("--from", "url", metavar="URL", default=None, help="URL of the object store.")
@click.option("--cluster", default=None, help="Which cluster of the store, if it has several.")
@click.option("--dry-run", is_flag=True, help="Only say what would be recovered.")
@click.option(
    "--skip-gaps",
    is_flag=True,
    help="Recover the rest where parts of the history are missing or damaged.",
)
@directory_option
@config_option
@json_option
def recover(
    url: str | None,
    cluster: str | None,
    dry_run: bool,
    skip_gaps: bool,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Create a data directory from an object store, after its node was lost.

    Topics with tiering come back with their options, and their shards with everything that was
    uploaded: records, deletions, producers, transactions and the offsets of consumer groups, which
    never point beyond what was recovered. The directory must be empty or absent.
    The objects then belong to the new directory: an older node stops moving segments.
    """
    from firnmq.disk.private import private_umask
    from firnmq.errors import NoTiering
    from firnmq.server.recovery import recover_directory
    from firnmq.server.settings import load_node_config

    data = unserved_directory()
    tiering = load_node_config(config_path).tiering
    tiering = dataclasses.replace(
        tiering, url=url or tiering.url, cluster=cluster or tiering.cluster
    )
    if not tiering.is_on:
        raise NoTiering
    tell_when_stopped(lambda: f"{data} is not made yet; recover again, the store has everything")
    with asking_store(), private_umask(), activity("recovering") as tell:
        found = recover_directory(data, tiering, dry_run=dry_run, skip_gaps=skip_gaps, tell=tell)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: Recovery) -> None:
    shards = [(topic, shard) for topic in found.topics for shard in topic.shards]
    records = sum(shard.end_offset - shard.start_offset for _, shard in shards)
    verb = "would be recovered" if found.is_dry_run else "recovered"
    click.echo(
        f"{verb}: cluster {found.cluster} from {found.url}: {count(len(found.topics), 'topic')}, "
        f"{count(len(shards), 'shard')}, offsets of {count(records, 'record')}"
    )
    if shards:
        print_table(
            ("TOPIC", "SHARD", "START", "END", "SEGMENTS", "BYTES", "LAST UPLOAD"),
            [
                (
                    topic.topic,
                    shard.shard.rpartition("_")[2],
                    shard.start_offset,
                    shard.end_offset,
                    shard.segment_count,
                    shard.length_bytes,
                    "-" if shard.last_upload_ms is None else time_text(shard.last_upload_ms),
                )
                for topic, shard in shards
            ],
        )
    for gap in found.gaps:
        click.echo(
            f"GAP       offsets {gap.start_offset:,} to {gap.end_offset - 1:,} of {gap.topic} "
            f"({gap.shard}) are lost",
            err=True,
        )
    for topic, shard in shards:
        if shard.aborted_transactions:
            producers = ", ".join(map(str, shard.aborted_transactions))
            click.echo(
                f"aborted   transactions in {topic.topic} ({shard.shard}) of producers {producers}"
            )
        if shard.doubtful_transactions:
            producers = ", ".join(map(str, shard.doubtful_transactions))
            click.echo(
                f"DOUBTFUL  transactions in {topic.topic} ({shard.shard}) of producers {producers} "
                "ended in a gap, so that their outcome is unknown; they count as aborted",
                err=True,
            )
    if found.groups_written_ms is not None:
        click.echo(
            f"groups    {count(len(found.groups), 'group')} with offsets of "
            f"{time_text(found.groups_written_ms)}"
        )
    for each in found.clamped_offsets:
        click.echo(
            f"SET BACK  group {safe_text(each.group)} had read {each.topic} ({each.shard}) up to "
            f"{each.committed_offset:,}, which is lost; it goes on at {each.end_offset:,}",
            err=True,
        )
    for reason in found.passed_over:
        click.echo(f"passed over {reason}", err=True)
    click.echo("not in the store, and therefore gone:")
    for thing in found.not_in_the_store:
        click.echo(f"  {thing}")
    if not found.is_dry_run:
        click.echo(f"serve it  firn serve --data {found.data}, with the same [tiering] url")
