"""Weaker logs, each with one promise taken out: the simulation finds every one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firnmq.engines.shardlog import ShardLog, recovery
from firnmq.engines.shardlog.rolling import ParkedAppends, machine, steps
from firnmq.engines.shardlog.rolling.machine import Begun, RollMachine
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.errors import Corruption
from tests.simulation.log.disk import Files
from tests.simulation.log.judge import Violation
from tests.simulation.log.test_log import STEPS
from tests.simulation.log.world import World

SEEDS_MAX = 1_000
Patch = pytest.MonkeyPatch


def acknowledged_before_the_sync(patch: Patch) -> None:
    patch.setattr(ShardLog, "sync", lambda self: None)
    write_at = Files.write_at
    patch.setattr(Files, "write_at", lambda *arguments, durable=False: write_at(*arguments))


def sealed_before_the_sync(patch: Patch) -> None:
    def sync(log: ShardLog, machine: object) -> None:
        with log.lock:
            log.release_preallocation()
            steps.commit(log)

    patch.setattr(steps, "sync", sync)


def sealed_above_the_high_watermark(patch: Patch) -> None:
    handle = RollMachine.handle

    def hasty(self: RollMachine, event: machine.Event, now_s: float) -> list[machine.Action]:
        if isinstance(event, Begun):
            event = Begun(end_offset=event.end_offset, shown_offset=event.end_offset)
        return handle(self, event, now_s)

    patch.setattr(RollMachine, "handle", hasty)


def appended_while_frozen(patch: Patch) -> None:
    take = RollMachine._take

    def warm(self: RollMachine, step: machine.RollStep) -> None:
        take(self, step)
        self.is_frozen = False

    patch.setattr(RollMachine, "_take", warm)


def parked_out_of_order(patch: Patch) -> None:
    take = ParkedAppends.take
    patch.setattr(ParkedAppends, "take", lambda self: take(self)[::-1])


def recovered_without_truncating(patch: Patch) -> None:
    patch.setattr(recovery, "_shown_length", lambda failed, segment: segment.bytes.length())


def producers_not_restored(patch: Patch) -> None:
    def empty(spec: object, backend: object, end_offset: int, *, has_moved: bool) -> Snapshot:
        return Snapshot(end_offset)

    patch.setattr(recovery, "_read_snapshot", empty)


MUTANTS: list[Callable[[Patch], None]] = [
    acknowledged_before_the_sync,
    sealed_before_the_sync,
    sealed_above_the_high_watermark,
    appended_while_frozen,
    parked_out_of_order,
    recovered_without_truncating,
    producers_not_restored,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_weaker_log_is_found_out(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "FREEZE_S_MAX", 0.0)
    mutant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            World(seed).run(STEPS)
        except (Violation, Corruption, AssertionError):
            return
    pytest.fail(f"{mutant.__name__} was not found in {SEEDS_MAX} schedules")
