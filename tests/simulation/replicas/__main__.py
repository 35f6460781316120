"""Replays a schedule: `python -m tests.simulation.replicas SEED`."""

import sys

from tests.simulation.replicas.test_replicas import STEPS
from tests.simulation.replicas.world import World

World(int(sys.argv[1]), print).run(STEPS)
