"""Seeded schedules of the real log lose nothing that was acknowledged, and show nothing else.

`python -m tests.simulation.log SEED` replays a schedule with its trace.
"""

from __future__ import annotations

from collections import Counter

import pytest

from firnmq.engines.shardlog.rolling import machine
from tests.simulation.log.world import World

PARTS = 4
SEEDS_PER_PART = 500
STEPS = 40


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread cannot wait for a high watermark that it moves itself."""
    monkeypatch.setattr(machine, "FREEZE_S_MAX", 0.0)


def run(seed: int) -> World:
    world = World(seed)
    try:
        world.run(STEPS)
    except BaseException as error:
        error.add_note(f"replay it with: python -m tests.simulation.log {seed}")
        raise
    return world


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        world = run(seed)
        totals += world.done
        totals["acknowledged"] += world.judge.acknowledged_count
        totals["failed"] += world.judge.failed_count
        totals["unknown"] += world.judge.unknown_count
        totals["segments"] += len(world._catalog.metas)
    # A simulation in which nothing happens proves nothing.
    assert totals["acknowledged"] > 5 * SEEDS_PER_PART, totals
    for what in ("failed", "unknown", "cut"):
        assert totals[what] > SEEDS_PER_PART // 10, totals
    assert totals["unreadable"] < SEEDS_PER_PART * STEPS // 1_000, totals
    assert totals["segments"] > SEEDS_PER_PART * 3 // 2, totals


def test_a_schedule_replays_exactly() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        World(17, trace.append).run(200)
    assert traces[0] == traces[1]
    assert len(traces[0]) >= 200
