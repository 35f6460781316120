"""A disk that forgets what was not synced costs nothing that was acknowledged as durable."""

import random
from pathlib import Path

from tests.integration.faults.crash_disk_run import crash_disk_run

RUNS = 10


def test_a_power_cut_takes_back_only_what_was_not_promised(tmp_path: Path) -> None:
    first_seed = random.randrange(2**32)
    print(f"seeds from {first_seed} on")
    for seed in range(first_seed, first_seed + RUNS):
        crash_disk_run(tmp_path / f"{seed}", seed)
