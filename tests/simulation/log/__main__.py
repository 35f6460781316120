"""Replays a schedule: `python -m tests.simulation.log SEED`."""

import sys
from unittest.mock import patch

from firnmq.engines.shardlog.rolling import machine
from tests.simulation.log.test_log import STEPS
from tests.simulation.log.world import World

with patch.object(machine, "FREEZE_S_MAX", 0.0):
    World(int(sys.argv[1]), print).run(STEPS)
