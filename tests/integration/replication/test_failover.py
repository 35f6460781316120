"""Nodes with replicas are killed, paused and restarted under load: nothing acknowledged is lost,
and the others go on without a hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.cluster.nodes import Nodes, wait_until
from tests.integration.replication.clients import LoggedProducer, LoggedReader, check
from tests.integration.replication.replicated import (
    SHORT_SEGMENTS,
    check_files,
    controller,
    create,
    segments,
    wait_in_sync,
)

_TOPIC = "load"
_PARTITIONS = 3


class Load:
    """Producers and a reader, stopped and checked at the end."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        where = nodes.bootstrap, _TOPIC, _PARTITIONS
        self.producers = [
            LoggedProducer(*where, "idempotent", is_idempotent=True),
            LoggedProducer(*where, "plain", is_idempotent=False),
        ]
        self.reader = LoggedReader(*where)

    def wait_progress(self, count: int = 50) -> None:
        """Returns once every partition has acknowledged more than until now."""
        before = [self._counts(index) for index in range(_PARTITIONS)]

        def has_grown() -> bool:
            return all(
                now > was + count
                for index in range(_PARTITIONS)
                for now, was in zip(self._counts(index), before[index], strict=True)
            )

        wait_until(has_grown, "every partition takes records")

    def _counts(self, partition: int) -> list[int]:
        return [producer.count_of(partition) for producer in self.producers]

    def close(self) -> None:
        for producer in self.producers:
            producer.stop()
        self.reader.stop()

    def check(self) -> None:
        assert not any(producer.failed for producer in self.producers)
        check(self.nodes.bootstrap, _TOPIC, _PARTITIONS, self.producers, self.reader)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path)) as found:
        found.start()
        create(found, _TOPIC, _PARTITIONS, 3, **SHORT_SEGMENTS)
        yield found
        for number, process in found.processes.items():  # Shown if the test fails.
            print(f"node {number}:\n{process.errors()}")


def test_leaders_followers_and_controllers_are_killed_and_paused(nodes: Nodes) -> None:
    with closing(Load(nodes)) as load:
        load.wait_progress()

        # 1. A leader is killed: its partitions go on elsewhere, and it comes back as a follower.
        first = nodes.leaders(1, _TOPIC)[0]
        nodes[first].kill()
        load.wait_progress()
        nodes[first].start()
        wait_in_sync(nodes)

        # 2. The controller is killed; whoever leads goes on, and another one is elected.
        found = controller(nodes)
        assert found is not None
        nodes[found].kill()
        load.wait_progress()
        nodes[found].start()
        wait_in_sync(nodes)

        # 3. A leader stands still until others have taken over, and goes on: it is fenced.
        leaders = nodes.wait_leaders(1, _TOPIC)
        paused = leaders[1]
        nodes.pause(paused)
        try:
            load.wait_progress()
        finally:
            nodes.resume(paused)
        nodes.wait_registered()
        load.wait_progress()

        # 4. All are restarted.
        for number in (1, 2, 3):
            nodes[number].kill()
        for number in (1, 2, 3):
            nodes[number].start()
        load.wait_progress()
        wait_in_sync(nodes)
    load.check()
    wait_in_sync(nodes)
    assert check_files(nodes) >= 3 * _PARTITIONS
    assert not any(record.lossy for record in segments(nodes).values())


def test_without_enough_replicas_nothing_is_taken_and_nothing_is_lost(nodes: Nodes) -> None:
    with closing(Load(nodes)) as load:
        load.wait_progress()
        left = nodes.leaders(1, _TOPIC)[0]
        others = [number for number in (1, 2, 3) if number != left]
        for number in others:
            nodes[number].kill()
        nodes.wait_registered(left)
        for number in others:
            nodes[number].start()
        nodes.wait_registered()
        load.wait_progress()
    load.check()


def test_a_rolling_restart_is_not_noticed_by_clients(nodes: Nodes) -> None:
    with closing(Load(nodes)) as load:
        for number in (1, 2, 3):
            load.wait_progress()
            assert nodes[number].terminate() == 0
            nodes[number].start()
            wait_in_sync(nodes)
        load.wait_progress()
    load.check()
    assert check_files(nodes) >= 3 * _PARTITIONS
