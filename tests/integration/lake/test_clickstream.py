"""The example's pipeline on little data: what was sent, once, in every place it belongs."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from examples.clickstream import events
from examples.clickstream.demo import Outcome, Scale, run
from examples.clickstream.node import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_MS = 1_767_268_800_000


def test_events_follow_from_their_seed() -> None:
    once = list(events.year(5_000, END_MS, seed=3))
    assert once == list(events.year(5_000, END_MS, seed=3))
    assert once != list(events.year(5_000, END_MS, seed=4))
    assert 4_000 < len(once) < 6_000
    times = [event.timestamp_ms for event in once]
    assert times == sorted(times)
    assert times[-1] < END_MS
    assert times[0] > END_MS - 366 * events.DAY_MS
    whole = [json.loads(event.value) for event in once if not event.is_broken]
    kinds = Counter(event["event"] for event in whole)
    assert kinds["view"] > kinds["cart"] > kinds["purchase"] > 0
    assert {event["product"] for event in whole} == {each.product for each in events.PRODUCTS}
    assert 0 < sum(event.is_broken for event in once) < 50


def check(outcome: Outcome, picture: Path) -> None:
    """What was sent is where it belongs, once."""
    whole = outcome.sent - outcome.broken
    # Queries over the table and the tail saw everything, up to the last event acknowledged.
    assert outcome.answer.events == whole
    assert outcome.newest_ms >= outcome.acknowledged_ms > END_MS
    days = {row.day for row in outcome.answer.days}
    assert (max(days) - min(days)).days > 250
    # The typed table and its dead letters share the enriched topic among them.
    assert outcome.typed.num_rows == whole
    assert outcome.dead_letters.num_rows == outcome.broken
    revenue = sum(row.revenue for row in outcome.answer.days)
    typed = sum(value for value in outcome.typed.column("revenue").to_pylist() if value)
    assert revenue == pytest.approx(float(typed))
    # Every hour and country that is over was written once, with what the table says of it.
    written = {(row.start.astimezone(UTC), row.country): row for row in outcome.hours}
    assert len(written) == len(outcome.hours) > 10
    expected: Counter[tuple[object, str]] = Counter()
    for at, country in zip(
        outcome.typed.column("at").to_pylist(),
        outcome.typed.column("country").to_pylist(),
        strict=True,
    ):
        hour = at.replace(minute=0, second=0, microsecond=0)
        expected[hour, country] += 1
    assert {place: row.events for place, row in written.items()} == {
        place: expected[place] for place in written
    }
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.streaming
def test_a_year_and_the_last_second(spark: SparkSession, tmp_path: Path) -> None:
    picture = tmp_path / "year.png"
    scale = Scale(events=300, rate=40, live_s=1.0)
    with serving(tmp_path / "data") as bootstrap:
        outcome = run(spark, bootstrap, tmp_path, picture, scale, Console(quiet=True))
    check(outcome, picture)
    assert outcome.synced["shop.clicks"] > 200
