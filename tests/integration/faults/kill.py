"""Rounds of: let a writer work, kill it with signal 9, reopen the store and compare."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from firnmq.server import LocalStore, Store
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.processes import Child, Nursery
from tests.integration.faults.writer import VOLATILE

_CYCLES_PER_DIRECTORY = 8
"""Then a new one is begun, since every check reads all there is."""
_STEPS = 10_000
"""More than a writer does before it is killed."""


def kill_cycles(nursery: Nursery, directory: Path, seed: int, count: int) -> int:
    """Runs `count` rounds and returns how many operations were acknowledged in them."""
    rng = random.Random(seed)
    ledger = Ledger()
    acknowledged = 0
    path = directory / "store"
    for cycle in range(count):
        if cycle % _CYCLES_PER_DIRECTORY == 0:
            acknowledged += ledger.done_count
            ledger = Ledger()
            shutil.rmtree(path, ignore_errors=True)
        job = "tests.integration.faults.writer:run"
        with nursery.run(job, str(path), seed, cycle, _STEPS) as writer:
            _kill_somewhere(writer, ledger, rng)
        check_after_kill(path, ledger, f"seed {seed}, cycle {cycle}", nursery, seed + cycle)
    shutil.rmtree(path)
    return acknowledged + ledger.done_count


def check_after_kill(path: Path, ledger: Ledger, when: str, nursery: Nursery, seed: int) -> None:
    try:
        with Store(LocalStore(path, background=False)) as store:  # Nothing moves while we look.
            ledger.check(store, is_lossy=VOLATILE.__contains__, seed=seed)
    except Exception as error:
        error.add_note(f"after the kill of {when}; the writer's log:\n{nursery.log_text()[-3000:]}")
        raise


def _kill_somewhere(writer: Child, ledger: Ledger, rng: random.Random) -> None:
    """Kills while the store opens, or after some number of acknowledgements."""
    is_early = rng.random() < 0.2
    wanted = rng.randrange(1, 500)
    done = 0
    for line in writer.lines():
        word = ledger.take_line(line)
        done += word == "done"
        if word == "opening" and is_early:
            time.sleep(rng.random() * 0.08)  # Opening has no events to wait for.
            break
        if done >= wanted:
            break
    writer.kill()
    for line in writer.lines():  # What it had said before it died.
        ledger.take_line(line)
    code = writer.wait()
    assert code == -9, f"the writer ended by itself with {code}"
