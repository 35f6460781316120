"""Weaker replicas, each with one promise taken out: the simulation finds every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firnmq.engines.media.durable import DurableBackend
from firnmq.engines.shardlog import ShardLog, recovery, replica_changes
from firnmq.engines.shardlog.replica import Reached
from firnmq.engines.shardlog.replica_turn import ReplicaTurns
from firnmq.errors import Corruption, FirnError
from tests.simulation.log.disk import Files
from tests.simulation.log.judge import Violation
from tests.simulation.replicas.test_replicas import STEPS
from tests.simulation.replicas.world import World

SEEDS_MAX = 1_000
Patch = pytest.MonkeyPatch


def reported_before_the_sync(patch: Patch) -> None:
    patch.setattr(ShardLog, "sync", lambda self: None)
    write_at = Files.write_at
    patch.setattr(Files, "write_at", lambda *arguments, durable=False: write_at(*arguments))


def fences_not_synced(patch: Patch) -> None:
    def keep(self: DurableBackend, replica: Any, fence: int) -> None:
        sync, self._kv.sync = self._kv.sync, lambda: None  # type: ignore[method-assign]
        try:
            keep_fence(self, replica, fence)
        finally:
            self._kv.sync = sync  # type: ignore[method-assign]

    keep_fence = DurableBackend.keep_fence
    patch.setattr(DurableBackend, "keep_fence", keep)


def shown_when_durable(patch: Patch) -> None:
    end_turn = ReplicaTurns._end_turn

    def hasty(self: ReplicaTurns, settlement: Any, log: ShardLog, requests: Any) -> None:
        end_turn(self, settlement, log, requests)
        log.show_pending(log.tail.next_offset, settlement)

    patch.setattr(ReplicaTurns, "_end_turn", hasty)


def not_truncated(patch: Patch) -> None:
    def keep(log: ShardLog, *_: object) -> Reached:
        return replica_changes.reached_by(log)

    patch.setattr(replica_changes, "truncate_replica", keep)


def completeness_not_settled(patch: Patch) -> None:
    patch.setattr(DurableBackend, "settle_index", lambda self: None)


def batches_of_an_earlier_segment(patch: Patch) -> None:
    patch.setattr(recovery.TailScan, "_is_of_earlier_segment", lambda self, entry: False)


def installed_without_a_sync(patch: Patch) -> None:
    patch.setattr(DurableBackend, "sync_index", lambda self: None)


MUTANTS: list[Callable[[Patch], None]] = [
    reported_before_the_sync,
    fences_not_synced,
    shown_when_durable,
    not_truncated,
    completeness_not_settled,
    batches_of_an_earlier_segment,
    installed_without_a_sync,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_weaker_replica_is_found_out(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            World(seed).run(STEPS)
        except (Violation, Corruption, FirnError, AssertionError, ValueError):
            return
    pytest.fail(f"{mutant.__name__} was not found in {SEEDS_MAX} schedules")
