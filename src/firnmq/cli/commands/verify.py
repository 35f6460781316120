"""`firn verify`: check everything that is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
)
from firnmq.cli.target import directory_option, opened, unserved_directory
from firnmq.cli.topic_argument import topic_argument

if TYPE_CHECKING:
    from firnmq.engines.verify.findings import Finding, Verification
    from firnmq.server import Store, TopicHandle


@click.command()
@topic_argument(required=False)
@click.option(
    "--deep",
    is_flag=True,
    help="Read segments that are only in the object store in full, and compare their CRCs.",
)
@directory_option
@config_option
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    topic: str | None,
    deep: bool,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Check all batches, checksums, segments, indexes and producers of a topic, or of all topics.

    Of segments that are only in the object store, sizes and manifests are checked, and with --deep
    every byte. Nothing is repaired. The exit code is 1 if anything is wrong, or if the object store
    could not be asked.
    """
    tell_when_stopped(lambda: "the check was given up; it changes nothing")
    with asking_store(), opened(config_path, background=False) as store:
        names = [each.name for each in store.topics()] if topic is None else [topic]
        handles = [store.topic(name) for name in names]
        checked = _check(store, handles, is_deep=deep)
        findings: list[tuple[str | None, Finding]]
        findings = [(name, finding) for name, each in checked for finding in each.findings]
        if topic is None:
            findings += [(None, finding) for finding in store.local.verifier.outside_shards()]
    if as_json:
        print_json(_document(checked, findings))
    else:
        _show(unserved_directory(), checked, findings)
    if findings or _store_failure(checked) is not None:
        ctx.exit(1)


def _check(
    store: Store, handles: list[TopicHandle], *, is_deep: bool
) -> list[tuple[str, Verification]]:
    from firnmq.cli.bounds import has_engine
    from firnmq.tiering.archive.copy_check import CopyChecker

    verifier, tier = store.local.verifier, store.local.tier
    shards: list[tuple[str, str]] = []
    for handle in handles:
        if has_engine(handle):
            shards += [(handle.name, shard) for shard in handle.topic.shard_names()]
        else:
            kept = handle.topic.config.storage_type
            click.echo(f"topic {handle.name} is kept by {kept}: not checked", err=True)
    reads_cold = is_deep and tier is not None
    total = sum(verifier.size_bytes(shard, with_cold=reads_cold) for _, shard in shards)
    checked: list[tuple[str, Verification]] = []
    before = fetched = 0
    with progress_bar("checking", total) as progress:

        def report(done: int, _: int) -> None:
            progress(before + fetched + done)

        def report_fetched(size: int) -> None:
            nonlocal fetched
            fetched += size
            report(0, 0)

        checker = None
        if tier is not None:
            checker = CopyChecker(tier.store, is_deep=is_deep, progress=report_fetched)
        for name, shard in shards:
            found = verifier.verify(shard, report, checker)
            before += found.checked_bytes
            checked.append((name, found))
    return checked


def _store_failure(checked: list[tuple[str, Verification]]) -> str | None:
    """Why copies could not be checked, if they were to be."""
    return next((each.store_failure for _, each in checked if each.store_failure), None)


def _row(topic: str | None, finding: Finding) -> dict[str, object]:
    return {
        "topic": topic,
        "shard": finding.shard,
        "segment_seq": finding.segment_seq,
        "kind": finding.kind.value,
        "where": finding.where,
        "position": finding.position,
        "message": finding.message,
    }


def _totals(checked: list[tuple[str, Verification]]) -> dict[str, int]:
    results = [each for _, each in checked]
    return {
        "shard_count": len(results),
        "segment_count": sum(each.segment_count for each in results),
        "batch_count": sum(each.batch_count for each in results),
        "record_count": sum(each.record_count for each in results),
        "entry_count": sum(each.entry_count for each in results),
        "checked_bytes": sum(each.checked_bytes for each in results),
        "store_only_count": sum(each.store_only_count for each in results),
        "store_only_bytes": sum(each.store_only_bytes for each in results),
        "checked_copy_count": sum(each.checked_copy_count for each in results),
    }


def _document(
    checked: list[tuple[str, Verification]], findings: list[tuple[str | None, Finding]]
) -> dict[str, object]:
    rows = [_row(topic, finding) for topic, finding in findings]
    return {
        **_totals(checked),
        "store_failure": _store_failure(checked),
        "finding_count": len(rows),
        "findings": rows,
    }


def _show(
    data: Path,
    checked: list[tuple[str, Verification]],
    findings: list[tuple[str | None, Finding]],
) -> None:
    totals = _totals(checked)
    parts = ", ".join(
        count(totals[f"{thing}_count"], thing) for thing in ("shard", "segment", "batch", "record")
    )
    click.echo(f"checked {parts}; {totals['checked_bytes']:,} bytes")
    unchecked = _show_copies(totals, _store_failure(checked))
    if not findings:
        left = f" in what was checked; NOT checked: {count(unchecked, 'cold segment')}"
        click.echo(f"nothing is wrong{left if unchecked else ''}")
        return
    click.echo()
    print_table(
        ("TOPIC", "SEGMENT", "KIND", "WHERE", "BYTE", "WHAT"),
        [
            (
                topic or "-",
                finding.segment_seq,
                finding.kind.value,
                _short(finding.where, data),
                finding.position,
                finding.message,
            )
            for topic, finding in findings
        ],
    )
    click.echo()
    click.echo(f"{count(len(findings), 'finding')}; paths are below {data}", err=True)


def _show_copies(totals: dict[str, int], failure: str | None) -> int:
    """Says what was checked in the object store; how many segments were not."""
    cold, done = totals["store_only_count"], totals["checked_copy_count"]
    if done:
        click.echo(f"checked {count(done, 'copy')} in the object store")
    if cold == done:
        return 0
    reason = "no object store is configured: FIRN_TIERING_URL, or [tiering] url with --config"
    click.echo(
        f"not checked: {count(cold - done, 'segment')} only in the object store, "
        f"{totals['store_only_bytes']:,} bytes in all: {failure or reason}",
        err=True,
    )
    return cold - done


def _short(where: str, data: Path) -> str:
    path = Path(where)
    return str(path.relative_to(data)) if path.is_relative_to(data) else where
