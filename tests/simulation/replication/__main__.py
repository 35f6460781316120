"""`python -m tests.simulation.replication`: the model at sizes that take minutes each."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from tests.simulation.replication.explore import explore
from tests.simulation.replication.model import Model
from tests.simulation.replication.test_model import FOUR, THREE, TWO

LARGE = {
    "two replicas, two records, two lost tails": replace(
        TWO, records=2, restarts=2, lost_tails=2, isr_changes=2
    ),
    "two replicas, everything once": replace(
        TWO, restarts=1, lost_tails=1, write_failures=1, isr_changes=2, fences=2, planned_seals=1
    ),
    "three replicas, one lost tail, one change of the ISR": replace(
        THREE, restarts=1, lost_tails=1, isr_changes=1
    ),
    "three replicas, two lost tails": replace(THREE, restarts=2, lost_tails=2),
    "three replicas, two records, one lost tail": replace(
        THREE, records=2, restarts=1, lost_tails=1
    ),
    "four replicas, one change of the ISR": replace(FOUR, isr_changes=1),
}


def main() -> int:
    for name, size in LARGE.items():
        began = time.monotonic()
        found = explore(Model(size), most=20_000_000)
        print(f"{name}: {found}, {time.monotonic() - began:.0f} s", flush=True)
        if found.problem is not None:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
