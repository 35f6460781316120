"""`firn verify`: check everything that is stored."""

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
    progress_bar,
)

if TYPE_CHECKING:
    from firnmq.engines.verify import Finding, Verification
    from firnmq.server import Store, TopicHandle


@click.command()
@click.argument("topic", required=False)
@data_option
@json_option
@click.pass_context
def verify(ctx: click.Context, topic: str | None, data: Path, as_json: bool) -> None:
    """Check all batches, checksums, segments, indexes and producers of a topic, or of all topics.

    Nothing is repaired. Exit code 1 if anything is wrong.
    """
    with opened(data, background=False) as store:
        names = [each.name for each in store.topics()] if topic is None else [topic]
        handles = [store.topic(name) for name in names]
        checked = _check(store, handles)
        findings: list[tuple[str | None, Finding]]
        findings = [(name, finding) for name, each in checked for finding in each.findings]
        if topic is None:
            findings += [(None, finding) for finding in store.local.verifier.stray_directories()]
    if as_json:
        print_json(_document(checked, findings))
    else:
        _show(data, checked, findings)
    if findings:
        ctx.exit(1)


def _check(store: Store, handles: list[TopicHandle]) -> list[tuple[str, Verification]]:
    from firnmq.cli.bounds import has_engine

    verifier = store.local.verifier
    shards: list[tuple[str, str]] = []
    for handle in handles:
        if has_engine(handle):
            shards += [(handle.name, shard) for shard in handle.topic.shard_names()]
        else:
            kept = handle.topic.config.storage_type
            click.echo(f"topic {handle.name} is kept by {kept}: not checked", err=True)
    total = sum(verifier.size_bytes(shard) for _, shard in shards)
    checked: list[tuple[str, Verification]] = []
    before = 0
    with progress_bar("checking", total) as progress:

        def report(done: int, _: int) -> None:
            progress(before + done)

        for name, shard in shards:
            found = verifier.verify(shard, report)
            before += found.checked_bytes
            checked.append((name, found))
    return checked


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
    }


def _document(
    checked: list[tuple[str, Verification]], findings: list[tuple[str | None, Finding]]
) -> dict[str, object]:
    rows = [_row(topic, finding) for topic, finding in findings]
    return {**_totals(checked), "finding_count": len(rows), "findings": rows}


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
    if totals["store_only_count"]:
        only = count(totals["store_only_count"], "segment")
        size = totals["store_only_bytes"]
        click.echo(f"{only} with {size:,} bytes only in the object store: not checked")
    if not findings:
        click.echo("nothing is wrong")
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


def _short(where: str, data: Path) -> str:
    path = Path(where)
    return str(path.relative_to(data)) if path.is_relative_to(data) else where
