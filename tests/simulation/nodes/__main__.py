"""`python -m tests.simulation.nodes`: many schedules, or one with its trace (`--seed N`)."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from tests.simulation.nodes.world import World

_FAILURES_MAX = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this schedule and print what happens")
    parser.add_argument("--count", type=int, default=1_000, help="how many schedules to run")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.seed is not None:
        print(World(options.seed, say=print).run())
        return 0
    began, failed = time.monotonic(), []
    for seed in range(options.first, options.first + options.count):
        try:
            World(seed).run()
        except Exception:
            failed.append(seed)
            print(f"seed {seed} fails", flush=True)
            traceback.print_exc(limit=-3)
            if len(failed) >= _FAILURES_MAX:
                break
    count = seed + 1 - options.first
    print(f"{count} schedules in {time.monotonic() - began:.0f} s, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
