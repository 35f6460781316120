"""`firn tier`: what is in the object store, what waits and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import (
    asking_store,
    config_option,
    count,
    json_option,
    print_json,
    print_table,
    progress_bar,
    tell_when_stopped,
    time_text,
)
from firnmq.cli.cost.command import cost
from firnmq.cli.errors import NoDataDirectory
from firnmq.cli.target import chosen_node, target_options, unserved_directory
from firnmq.cli.topic_argument import topic_argument
from firnmq.errors import FirnError, NoTiering

if TYPE_CHECKING:
    from firnmq.cli.node import NodeClient
    from firnmq.server import LocalStore
    from firnmq.tiering.move.mover import TierMover

_SCRUB_TIMEOUT_S = 24 * 3600.0
_POLL_S = 0.2
_ROWS_SHOWN_MAX = 20
_STATES_WELL = ("ok", "unknown")


@click.group()
@target_options
def tier() -> None:
    """Show, upload and check the segments in the object store, of a node or of a data directory."""


tier.add_command(cost)


@tier.command()
@target_options
@config_option
@json_option
def status(config_path: Path | None, as_json: bool) -> None:
    """Show what is in the object store, what waits for its upload, and why."""
    node = chosen_node(changes=False)
    if node is not None:
        found = node.get("tier")
    else:
        with _mover(config_path, only_looks=True) as (local, mover):
            found = _asked_status(local, mover)
    if as_json:
        print_json(found)
    else:
        _show_status(found)


@tier.command()
@topic_argument(required=False)
@click.option("--roll", is_flag=True, help="Seal active segments first: everything is uploaded.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Seconds to wait.",
)
@target_options
@config_option
@json_option
@click.pass_context
def upload(
    ctx: click.Context,
    topic: str | None,
    roll: bool,
    timeout_s: float,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Upload sealed segments now, of all topics or of one, whatever tiering.upload.delay.ms says.

    The exit code is 1 if segments still wait at the end.
    """
    node = chosen_node(changes=True)
    whose = "the node goes on" if node is not None else "the next upload goes on"
    tell_when_stopped(lambda: f"segments that are uploaded stay in the store; {whose}")
    if node is not None:
        failures_before = _failure_count(node.get("tier"))
        node.call("POST", ("tier", "upload"), {"topic": topic, "roll": roll})
        found = _awaited(node, topic, timeout_s, failures_before)
    else:
        import logging

        # The command itself says why something still waits.
        logging.getLogger("firnmq.tiering").setLevel(logging.CRITICAL)
        with _mover(config_path, only_looks=False) as (local, mover):
            found = _uploaded(local, mover, topic, roll, timeout_s)
    left = _waiting(found, topic)
    if as_json:
        print_json(found)
    else:
        click.echo(
            f"in the store: {count(found['tiered_segments'], 'segment')}, "
            f"{found['tiered_bytes']:,} bytes; still waiting: {count(left, 'segment')}"
        )
        if _is_failing(found):
            click.echo(f"because: {found['last_error']}", err=True)
    if left or _is_failing(found):
        ctx.exit(1)


@tier.command()
@click.option("--dry-run", is_flag=True, help="Report, but change nothing.")
@click.option(
    "--grace-ms",
    type=click.IntRange(min=0),
    default=None,
    help="Keep orphans younger than this.  [default: a day]",
)
@target_options
@config_option
@json_option
@click.pass_context
def scrub(
    ctx: click.Context,
    dry_run: bool,
    grace_ms: int | None,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Compare the objects with the metadata, and remove those that nothing refers to.

    A segment whose objects are missing or damaged is uploaded again if it is also on the local
    disk. The exit code is 1 if the metadata referred to an object that is missing or has the wrong
    size.
    """
    node = chosen_node(changes=not dry_run)
    whose = "the node goes on" if node is not None else "the next scrub goes on"
    tell_when_stopped(lambda: f"only objects that nothing refers to were removed, if any; {whose}")
    if node is not None:
        node.set_timeout(_SCRUB_TIMEOUT_S)
        found = node.call("POST", ("tier", "scrub"), {"dry_run": dry_run, "grace_ms": grace_ms})
    else:
        with _mover(config_path, only_looks=True) as (_, mover):
            found = _document(mover.scrub(dry_run=dry_run, grace_ms=grace_ms))
    if as_json:
        print_json(found)
    else:
        _show_scrub(found)
    if found["missing"]:
        ctx.exit(1)


# A data directory ---------------------------------------------------------------------------------


@contextmanager
def _mover(config_path: Path | None, *, only_looks: bool) -> Iterator[tuple[LocalStore, TierMover]]:
    """The mover of a data directory, at rest. A command that only looks creates no store: a store
    with copies that is not there is a mistyped URL, or a share that is not mounted."""
    data = unserved_directory()
    if not (data / "db").is_dir():
        raise NoDataDirectory(str(data))
    from firnmq.disk.private import private_umask
    from firnmq.server import LocalStore
    from firnmq.server.settings import load_node_config
    from firnmq.server.tier import existing_object_store, open_object_store
    from firnmq.tiering.stores.local import LocalStore as DirectoryStore

    config = load_node_config(config_path)
    if config.tiering.url is None:
        raise NoTiering
    with asking_store(), private_umask():
        local = LocalStore(
            data,
            config=config.store,
            background=False,
            tiering=config.tiering,
            open_objects=existing_object_store if only_looks else open_object_store,
        )
        try:
            assert local.tier is not None
            store, mover = local.tier.store, local.tier.mover
            if only_looks and mover.ledger.has_copies and isinstance(store, DirectoryStore):
                store.require_root()
            yield local, mover
        finally:
            local.close()


def _asked_status(local: LocalStore, mover: TierMover) -> dict[str, Any]:
    """The status after a look at the store, which a mover at rest has not used yet."""
    from firnmq.server.identity import directory_id
    from firnmq.tiering.archive.ownership import NotOwner, OtherStore, latest_claim
    from firnmq.tiering.move.status import kind_of

    found = _document(mover.status())
    assert local.tier is not None
    store, has_copies = local.tier.store, mover.ledger.has_copies
    try:
        latest = latest_claim(store, found["cluster"])
        if latest is None and has_copies:
            raise OtherStore(found["cluster"], store.url)
        if latest is not None and latest[1].directory_id != directory_id(local.meta):
            raise NotOwner(found["cluster"], store.url)
    except FirnError as error:
        is_new = store.url.startswith("file:") and not has_copies  # The first upload makes it.
        if not is_new:
            now_ms = local.clock.now_ms()
            failure = {"last_error": str(error), "last_error_ms": now_ms, "failures_in_a_row": 1}
            found |= {"state": kind_of(error).value, **failure}
        return found
    return {**found, "state": "ok"}


def _uploaded(
    local: LocalStore, mover: TierMover, topic: str | None, roll: bool, timeout_s: float
) -> dict[str, Any]:
    if topic is not None:
        local.catalog.get(topic)
    if roll:
        local.roll_tiered(topic)
    deadline = monotonic() + timeout_s
    with _upload_bar(_document(mover.status()), topic) as progress:
        while True:
            mover.request_upload(topic)
            mover.work()
            found = _document(mover.status())
            progress(found)
            if not _waiting(found, topic) or _is_failing(found) or monotonic() >= deadline:
                return found


@contextmanager
def _upload_bar(
    before: dict[str, Any], topic: str | None
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Gives a function to call with each status while bytes are uploaded."""
    total = _waiting_bytes(before, topic)
    with progress_bar("uploading", total) as progress:
        yield lambda found: progress(max(total - _waiting_bytes(found, topic), 0))


def _waiting_bytes(found: dict[str, Any], topic: str | None) -> int:
    return sum(row["waiting_bytes"] for row in found["topics"] if topic in (None, row["topic"]))


def _document(status: object) -> dict[str, Any]:
    """The same as a node's answer."""
    import msgspec

    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return document


def _awaited(
    node: NodeClient, topic: str | None, timeout_s: float, failures_before: int
) -> dict[str, Any]:
    """The status in the end. A failure from before we asked says nothing: it is being tried."""
    deadline = monotonic() + timeout_s
    found: dict[str, Any] = node.get("tier")
    with _upload_bar(found, topic) as progress:
        while True:
            has_failed = _is_failing(found) and _failure_count(found) > failures_before
            if not _waiting(found, topic) or has_failed or monotonic() >= deadline:
                return found
            sleep(_POLL_S)
            found = node.get("tier")
            progress(found)


def _failure_count(found: dict[str, Any]) -> int:
    return sum(found["failure_counts"].values())


def _is_failing(found: dict[str, Any]) -> bool:
    return found["state"] not in _STATES_WELL or any(
        row["attempt_count"] for row in found["waiting"]
    )


def _waiting(found: dict[str, Any], topic: str | None) -> int:
    return sum(row["waiting_segments"] for row in found["topics"] if topic in (None, row["topic"]))


# Showing ------------------------------------------------------------------------------------------


def _show_status(found: dict[str, Any]) -> None:
    click.echo(f"store     {found['url']} (cluster {found['cluster']}): {found['state']}")
    if found["state"] not in _STATES_WELL:
        click.echo(f"error     {found['last_error']}")
        click.echo(
            f"failed    {count(found['failures_in_a_row'], 'time')} in a row, last at "
            f"{time_text(found['last_error_ms'])}, again in {found['retry_in_ms']:,} ms"
        )
    oldest = f", oldest for {found['lag_ms'] / 1000:,.1f} s" if found["waiting_segments"] else ""
    click.echo(
        f"waiting   {count(found['waiting_segments'], 'segment')}, {found['waiting_bytes']:,} bytes"
        f"{oldest}; {found['uploading_segments']} under way"
    )
    if found["is_holding_appends"]:
        click.echo(
            f"held      appends to tiered topics are refused: more than "
            f"{found['backlog_bytes_max']:,} bytes wait"
        )
    click.echo(
        f"stored    {count(found['tiered_segments'], 'segment')}, {found['tiered_bytes']:,} bytes, "
        f"{found['local_bytes']:,} of them here as well"
    )
    if found["dead_segments"]:
        click.echo(f"dead      {count(found['dead_segments'], 'segment')} to be removed there")
    if found["topics"]:
        click.echo()
        names = ("waiting_segments", "waiting_bytes", "tiered_segments", "tiered_bytes")
        print_table(
            ("TOPIC", "WAITING", "BYTES", "STORED", "BYTES", "HERE TOO"),
            [
                (row["topic"], *(row[name] for name in names), row["local_bytes"])
                for row in found["topics"]
            ],
        )
    if found["waiting"]:
        click.echo()
        print_table(
            ("TOPIC", "SHARD", "SEGMENT", "OFFSETS", "BYTES", "SEALED", "WHY IT WAITS"),
            [
                (
                    row["topic"],
                    int(row["shard"].rpartition("_")[2]),
                    row["segment_seq"],
                    f"{row['base_offset']:,}–{row['end_offset'] - 1:,}",
                    row["length_bytes"],
                    time_text(row["sealed_ms"]),
                    row["why"],
                )
                for row in found["waiting"][:_ROWS_SHOWN_MAX]
            ],
        )


def _show_scrub(found: dict[str, Any]) -> None:
    click.echo(
        f"looked at {count(found['object_count'], 'object')} of this cluster, "
        f"{found['object_bytes']:,} bytes, and {count(found['segment_count'], 'segment')}"
    )
    click.echo(
        f"orphans   {found['orphan_count']:,}, {found['orphan_bytes']:,} bytes; "
        f"{found['young_count']:,} too young to go"
    )
    if found["ahead_count"]:
        click.echo(
            f"AHEAD     {found['ahead_count']:,} objects hold records beyond what this directory "
            "knows, as after an older copy of it was put back; they stay, firn recover has them",
            err=True,
        )
    if found["is_dry_run"]:
        click.echo("removed   nothing, this was only a look")
    else:
        click.echo(f"removed   {found['removed_count']:,}, {found['removed_bytes']:,} bytes")
    for row in found["orphans"][:_ROWS_SHOWN_MAX]:
        click.echo(f"  {row['key']} ({row['size']:,} bytes)")
    for row in found["missing"][:_ROWS_SHOWN_MAX]:
        here = "it is here as well" if row["is_local"] else "it is NOT here"
        if row["is_mended"]:
            here = "it is here as well and is copied again"
        click.echo(
            f"MISSING   {row['key']} {row['reason']}; segment {row['segment_seq']} of "
            f"{row['shard']}, {here}",
            err=True,
        )
    left = len(found["missing"]) - _ROWS_SHOWN_MAX
    if left > 0:
        click.echo(f"MISSING   {left:,} more; --json shows all", err=True)
