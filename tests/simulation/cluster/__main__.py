"""`python -m tests.simulation.cluster`: many schedules, or one with its trace (`--seed N`)."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.cluster.simulation import Simulation


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this schedule and print what happens")
    parser.add_argument("--count", type=int, default=1_000, help="how many schedules to run")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    options = parser.parse_args()
    if options.seed is not None:
        print(Simulation(options.seed, writer=print).run())
        return 0
    began = time.monotonic()
    failed, totals = [], {"steps": 0, "seals": 0, "lossy": 0, "acks": 0}
    for seed in range(options.first, options.first + options.count):
        try:
            result = Simulation(seed).run()
        except Exception:
            failed.append(seed)
            print(f"seed {seed} fails", flush=True)
            traceback.print_exc(limit=-3)
            if len(failed) >= 10:
                break
            continue
        totals["steps"] += result.steps
        totals["seals"] += result.seals
        totals["lossy"] += result.lossy
        totals["acks"] += sum(result.acknowledged.values())
        if (seed + 1) % 1_000 == 0:
            print(f"{seed + 1 - options.first} schedules, {totals}", flush=True)
    elapsed = time.monotonic() - began
    count = seed + 1 - options.first
    print(f"{count} schedules in {elapsed:.0f} s, {totals}, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
