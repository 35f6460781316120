"""A compaction interrupted anywhere leaves each segment as it was or as it was to be."""

import copy
import os
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from firnmq.server import LocalStore, Store
from firnmq.testing import CrashFiles, CrashKeyValueStore, PowerCut
from tests.integration.faults.compacting import (
    ENGINES,
    CompactedLedger,
    append,
    check,
    make_topics,
    take,
)
from tests.integration.faults.processes import Nursery
from tests.integration.faults.shim import EXIT_CODE

_JOBS = "tests.integration.faults.compacting"
_POINTS_MAX = 1000
_STEP = int(os.environ.get("FIRN_COMPACTION_STEP", "4"))
"""Every how many system calls one is the last; runs begin with different ones."""
_KILLS = 12
_POWER_CUTS = 25


@pytest.fixture
def ledgers() -> dict[str, CompactedLedger]:
    return {engine: CompactedLedger() for engine in ENGINES}


def test_a_compaction_ended_at_any_system_call(
    faulty_nursery: Nursery, tmp_path: Path, ledgers: dict[str, CompactedLedger]
) -> None:
    scenery = tmp_path / "scenery"
    with faulty_nursery.run(f"{_JOBS}:prepare", str(scenery)) as child:
        take(ledgers, child.lines())
        assert child.wait() == 0, faulty_nursery.log_text()
    first = random.randrange(_STEP)
    for after in range(first, _POINTS_MAX, _STEP):
        path = tmp_path / f"{after}"
        shutil.copytree(scenery, path)
        now = copy.deepcopy(ledgers)
        with faulty_nursery.run(f"{_JOBS}:compact", str(path), after, after % 2 == 1) as child:
            is_complete = take(now, child.lines())
            code = child.wait()
        assert is_complete or code == EXIT_CODE, faulty_nursery.log_text()
        try:
            check(path, now)
        except Exception as error:
            error.add_note(f"interrupted at call {after}")
            raise
        shutil.rmtree(path)
        if is_complete:
            assert after > 20, "there was nothing to interrupt"
            return
    raise AssertionError(f"not complete after {_POINTS_MAX} system calls")


def test_a_process_killed_while_it_compacts(
    nursery: Nursery, tmp_path: Path, ledgers: dict[str, CompactedLedger]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = tmp_path / "store"
    for cycle in range(_KILLS):
        job = f"{_JOBS}:work"
        with nursery.run(job, str(path), rng.randrange(2**32), (cycle + 1) * 1_000_000) as child:
            wanted = rng.randrange(20, 400)
            for number, line in enumerate(child.lines()):
                take(ledgers, [line])
                if number >= wanted:
                    break
            child.kill()
            take(ledgers, child.lines())
            assert child.wait() == -9, nursery.log_text()
        try:
            check(path, ledgers)
        except Exception as error:
            error.add_note(f"seed {seed}, cycle {cycle}")
            raise


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_power_cut_while_a_segment_is_compacted(engine: str, tmp_path: Path) -> None:
    first_seed = random.randrange(2**32)
    for seed in range(first_seed, first_seed + _POWER_CUTS):
        rng = random.Random(seed)
        ledger = CompactedLedger()
        path, remains = tmp_path / f"{seed}", tmp_path / f"{seed}-remains"
        with Store(LocalStore(path, background=False)) as store:
            make_topics(store)
            for at in range(8):
                _append(store, engine, ledger, at * 12, 12)
        cut = PowerCut(path, remains, after=rng.randrange(30), rng=rng)
        local = LocalStore(
            path,
            background=False,
            files=CrashFiles(cut),
            open_kv=partial(CrashKeyValueStore, cut=cut),
        )
        with Store(local) as store:
            for at in range(20):
                if not cut.has_come:
                    store.topic(engine).roll()
                    store.local.housekeep()
                if not cut.has_come:
                    before = copy.deepcopy(ledger)
                    _append(store, engine, ledger, 1000 + at * 20, 20)
                    if cut.has_come:  # Nobody has heard of it.
                        before.pending = set(range(1000 + at * 20, 1020 + at * 20))
                        ledger = before
            if not cut.has_come:
                cut.happen()
        try:
            check(remains, {engine: ledger})
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(path)
        shutil.rmtree(remains)


def _append(store: Store, name: str, ledger: CompactedLedger, first: int, count: int) -> None:
    ledger.intend(first, count)
    append(store, name, first, count, lambda *_: None)
    ledger.done()
