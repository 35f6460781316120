"""Faults of real nodes in an order that a seed decides, under load, checked at the end.

python -m tests.integration.replication.storm --seconds 600 [--seed 17]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from tests.integration.cluster.nodes import Nodes, wait_until
from tests.integration.replication.load import Load
from tests.integration.replication.replicated import (
    SHORT_SEGMENTS,
    check_files,
    controller,
    create,
    segments,
    wait_in_sync,
)

TOPIC = "load"
PARTITIONS = 4
_CALM_EVERY = 4
"""After so many faults everything must be well again."""


class Storm:
    def __init__(self, nodes: Nodes, load: Load, seed: int) -> None:
        self._nodes = nodes
        self._load = load
        self._random = random.Random(seed)
        self.told: list[str] = []

    def run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        faults: list[Callable[[], None]] = [
            self._kill,
            self._kill,
            self._kill_leader,
            self._kill_controller,
            self._pause,
            self._kill_two,
            self._restart,
            self._kill_all,
        ]
        count = 0
        while time.monotonic() < until_s:
            self._random.choice(faults)()
            count += 1
            if count % _CALM_EVERY == 0:
                self._nodes.wait_registered()
                self._load.wait_progress(5)
        self._nodes.wait_registered()
        self._load.wait_progress()
        wait_in_sync(self._nodes)

    def _tell(self, text: str) -> None:
        self.told.append(text)
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def _any(self) -> int:
        return self._random.choice(list(self._nodes.processes))

    def _away_s(self) -> float:
        return self._random.choice([0.0, 0.3, 1.0, 3.0, 5.0])

    def _kill_for(self, *numbers: int) -> None:
        away_s = self._away_s()
        self._tell(f"kill {numbers} for {away_s} s")
        for number in numbers:
            self._nodes[number].kill()
        time.sleep(away_s)
        for number in numbers:
            self._nodes[number].start()

    def _kill(self) -> None:
        self._kill_for(self._any())

    def _kill_two(self) -> None:
        self._kill_for(*self._random.sample(list(self._nodes.processes), 2))

    def _kill_all(self) -> None:
        self._kill_for(*self._nodes.processes)

    def _kill_leader(self) -> None:
        led = [
            record.leader
            for record in segments(self._nodes).values()
            if record.state.value == "active"
        ]
        if led:
            self._kill_for(self._random.choice(led))

    def _kill_controller(self) -> None:
        found = controller(self._nodes)
        if found is not None:
            self._kill_for(found)

    def _pause(self) -> None:
        number, away_s = self._any(), self._random.choice([0.2, 1.0, 2.0, 4.0])
        self._tell(f"pause {number} for {away_s} s")
        self._nodes.pause(number)
        try:
            time.sleep(away_s)
        finally:
            self._nodes.resume(number)

    def _restart(self) -> None:
        number = self._any()
        self._tell(f"restart {number}")
        with suppress(AssertionError):  # One that has just been paused may have to be killed.
            self._nodes[number].terminate()
        self._nodes[number].start()


def weather(directory: Path, seconds: float, seed: int) -> None:
    """Runs a storm over new nodes and checks what is left."""
    print(f"seed {seed}", flush=True)
    with closing(Nodes(directory)) as nodes:
        nodes.start()
        create(nodes, TOPIC, PARTITIONS, 3, **SHORT_SEGMENTS)
        try:
            with closing(Load(nodes, TOPIC, PARTITIONS)) as load:
                load.wait_progress()
                Storm(nodes, load, seed).run(seconds)
            load.check()
            wait_until(lambda: check_files(nodes) > 0, "sealed segments have their bytes")
            assert not any(record.lossy for record in segments(nodes).values())
        except BaseException:
            for number, process in nodes.processes.items():
                print(f"node {number}:\n{process.errors()}")
            raise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as directory:
        weather(Path(directory), options.seconds, seed)
    print("nothing was lost")


if __name__ == "__main__":
    main()
