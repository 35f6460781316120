"""The whole story in order, told while it happens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from examples.clickstream import pipeline, report, traffic
from examples.clickstream.events import year
from examples.clickstream.pipeline import CLICKS, ENRICHED, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firnmq.lake.jobs.sync import SyncDone


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    events: int = 150_000
    rate: int = 20
    """Events a second while people are in the shop."""
    live_s: float = 20.0
    shards: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a test compares."""

    sent: int
    broken: int
    answer: report.Answer
    typed: Any
    dead_letters: Any
    hours: list[Any]
    synced: dict[str, int]
    newest_ms: int
    """Of the events that the query saw while people were in the shop."""
    acknowledged_ms: int
    """Of the newest event that was acknowledged before it was asked."""


def run(
    spark: SparkSession, bootstrap: str, scratch: Path, picture: Path, scale: Scale, out: Console
) -> Outcome:
    """Needs a node that has none of the topics yet."""
    from firnmq.lake.spark import register

    register(spark)
    traffic.make_topics(bootstrap, pipeline.TOPICS, scale.shards)
    sender = traffic.Sender(bootstrap)
    shop = Pipeline(spark, bootstrap, scratch / "checkpoints")
    try:
        with _step(out, "a year of clicks, by a Kafka producer") as said:
            sender.send(year(scale.events, int(time.time() * 1000)))
            sender.flush()
            said(f"{sender.sent:,} events, {sender.broken} of them broken")
        with _step(out, "streams begin: clicks → enriched → per hour and country") as said:
            shop.start()
            said(f"{shop.rows_done():,} events enriched, exactly once")
        synced: Counter[str] = Counter()
        for topic in (CLICKS, ENRICHED):
            synced[topic] += _sync(spark, bootstrap, topic, out)
        with traffic.Visitors(sender, scale.rate):
            _watch(out, shop, sender, scale.live_s)
            for topic in (CLICKS, ENRICHED):
                synced[topic] += _sync(spark, bootstrap, topic, out)
            with _step(out, "one query over the year and the last second") as said:
                asked, acknowledged_ms = time.time(), sender.acknowledged_ms
                live = report.ask_now(spark, bootstrap)
                age_s = asked - live.newest.timestamp()
                said(
                    f"{live.events:,} events since {live.oldest:%Y-%m-%d}; the newest was "
                    + (f"{age_s:.2f} s old" if age_s > 0 else "sent while it was answered")
                )
        with _step(out, "the shop closes; what is left flows to the lake") as said:
            shop.process_all()
            synced[ENRICHED] += _sync(spark, bootstrap, ENRICHED, Console(quiet=True))
            typed, dead = report.typed_rows(bootstrap)
            said(f"{typed.num_rows:,} typed rows, {dead.num_rows} dead letters")
        answer = report.ask(spark, bootstrap)
        report.plot(answer, picture)
    finally:
        shop.stop()
        sender.close()
    hours = report.hours_written(spark, bootstrap)
    _summary(out, answer, dead, hours, picture)
    return Outcome(
        sent=sender.sent,
        broken=sender.broken,
        answer=answer,
        typed=typed,
        dead_letters=dead,
        hours=hours,
        synced=dict(synced),
        newest_ms=round(live.newest.timestamp() * 1000),
        acknowledged_ms=acknowledged_ms,
    )


@contextmanager
def _step(out: Console, title: str) -> Iterator[Any]:
    """A line with a spinner while it is under way, and what came of it behind it."""
    began = time.monotonic()
    said: list[str] = []
    with out.status(title + " …"):
        yield said.append
    took = f"[dim]{time.monotonic() - began:.1f} s[/]"
    out.print(f"[green]✓[/] {title}: [bold]{said[0] if said else 'done'}[/] {took}")


def _sync(spark: SparkSession, bootstrap: str, topic: str, out: Console) -> int:
    with _step(out, f"firn lake sync {topic}") as said:
        done: SyncDone = pipeline.sync(spark, bootstrap, topic)
        dead = f", {done.dead_letter_count} dead letters" if done.dead_letter_count else ""
        said(f"{done.row_count:,} rows{dead} in {done.file_count:,} Parquet files")
    return done.row_count


def _watch(out: Console, shop: Pipeline, sender: traffic.Sender, seconds: float) -> None:
    """Shows the live part as it goes."""
    began, before, last = time.monotonic(), sender.sent, ""
    with out.status("people are in the shop …") as status:
        while time.monotonic() - began < seconds:
            time.sleep(0.5)
            parts = []
            for query in shop.queries:
                progress = query.lastProgress
                if progress:
                    rate = progress["processedRowsPerSecond"] or 0.0
                    parts.append(f"{query.name}: batch {progress['batchId']}, {rate:,.0f} rows/s")
            last = f"{sender.sent - before:,} sent; " + "; ".join(parts)
            status.update(f"people are in the shop: {last}")
    took = f"[dim]{time.monotonic() - began:.1f} s[/]"
    out.print(f"[green]✓[/] people were in the shop: [bold]{last}[/] {took}")


def _summary(
    out: Console, answer: report.Answer, dead: Any, hours: list[Any], picture: Path
) -> None:
    table = Table(title="A year and the last second", title_justify="left")
    for name in ("category", "events", "revenue"):
        table.add_column(name, justify="left" if name == "category" else "right")
    for category in sorted({row.category for row in answer.days}):
        rows = [row for row in answer.days if row.category == category]
        events, revenue = sum(row.events for row in rows), sum(row.revenue for row in rows)
        table.add_row(category, f"{events:,}", f"{revenue:,.2f}")
    out.print(table)
    reasons = Counter(reason.as_py()[:60] for reason in dead.column("reason"))
    for reason, count in reasons.most_common(4):
        out.print(f"  dead letters: {count} × [dim]{reason}[/]")
    out.print(f"  hours and countries that are over, in {pipeline.HOURLY}: {len(hours):,}")
    out.print(f"  the picture: [bold]{picture}[/]")
