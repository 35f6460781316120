"""A short storm of faults; `make test-chaos` runs a longer one."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.integration.replication.storm import weather


def test_a_storm_loses_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(2**31))
    weather(tmp_path, float(os.environ.get("CHAOS_SECONDS", "20")), seed)
