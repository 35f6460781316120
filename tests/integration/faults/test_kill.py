"""A process killed at any moment loses nothing it has acknowledged."""

import random
from pathlib import Path

from tests.integration.faults.kill import kill_cycles
from tests.integration.faults.processes import Nursery

CYCLES = 25


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(
    tmp_path: Path, nursery: Nursery
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    acknowledged = kill_cycles(nursery, tmp_path, seed, CYCLES)
    assert acknowledged > CYCLES
