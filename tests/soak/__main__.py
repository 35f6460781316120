"""Random workloads with crashes and damaged bytes: `python -m tests.soak --count N --seed S`.

Every kind of run is done `count` times, each time with the next seed; a failure names its seed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.faults.crash_disk_run import crash_disk_run
from tests.integration.faults.kill import kill_cycles
from tests.integration.faults.processes import Nursery
from tests.simulation.nodes.world import World
from tests.soak.fuzz_codec import fuzz

_KILLS_PER_RUN = 8
_BATCHES_PER_RUN = 10_000


def kill(directory: Path, seed: int) -> None:
    """Kills a busy process again and again."""
    nursery = Nursery(directory / "log")
    try:
        kill_cycles(nursery, directory, seed, _KILLS_PER_RUN)
    finally:
        nursery.close()


def schedule(directory: Path, seed: int) -> None:
    """Simulates nodes, their metadata and clients."""
    World(seed).run()


def damage(directory: Path, seed: int) -> None:
    """Gives damaged batches to every form of the codec."""
    fuzz(_BATCHES_PER_RUN, seed)


RUNS: dict[str, Callable[[Path, int], None]] = {
    "kill -9": kill,
    "power failure on a crash disk": crash_disk_run,
    "damaged batches": damage,
    "schedules of nodes": schedule,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", choices=list(RUNS), help="one kind of run")
    options = parser.parse_args()
    print(f"seeds {options.seed} to {options.seed + options.count - 1}", flush=True)
    for name, run in RUNS.items():
        if options.only not in (None, name):
            continue
        began = time.monotonic()
        for seed in range(options.seed, options.seed + options.count):
            with tempfile.TemporaryDirectory(prefix="firn-soak-") as directory:
                try:
                    run(Path(directory), seed)
                except BaseException:
                    print(f"{name}: failed with seed {seed}", flush=True)
                    raise
        print(f"{name}: {options.count} runs in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
