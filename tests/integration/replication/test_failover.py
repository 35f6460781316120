"""Nodes with replicas are killed, paused and restarted under load: nothing acknowledged is lost,
and the others go on without a hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.integration.admin.test_metrics import OF_REPLICAS
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until
from tests.integration.replication.load import Load
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
_JSON = {"Content-Type": "application/json"}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path)) as found:
        found.start()
        create(found, _TOPIC, _PARTITIONS, 3, **SHORT_SEGMENTS)
        yield found
        for number, process in found.processes.items():  # Shown if the test fails.
            print(f"node {number}:\n{process.errors()}")


def test_leaders_followers_and_controllers_are_killed_and_paused(nodes: Nodes) -> None:
    with closing(Load(nodes, _TOPIC, _PARTITIONS)) as load:
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
    with closing(Load(nodes, _TOPIC, _PARTITIONS)) as load:
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
    with closing(Load(nodes, _TOPIC, _PARTITIONS)) as load:
        for number in (1, 2, 3):
            load.wait_progress()
            assert nodes[number].terminate() == 0
            nodes[number].start()
            wait_in_sync(nodes)
        load.wait_progress()
    load.check()
    assert check_files(nodes) >= 3 * _PARTITIONS


def test_operators_see_what_lacks_replicas(nodes: Nodes) -> None:
    """1. Everything is well; 2. a node is killed; 3. it is back."""
    wait_in_sync(nodes)

    def status(number: int) -> dict[str, Any]:
        with urlopen(f"{nodes[number].admin_url}/v1/cluster", timeout=WAIT_S) as answer:
            found: dict[str, Any] = json.load(answer)["replication"]
        return found

    assert status(1)["shard_count"] == _PARTITIONS
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": nodes[1].address})
    (described_broker,) = admin.describe_configs([resource]).values()
    assert described_broker.result(WAIT_S)["default.replication.factor"].value == "3"
    wait_until(lambda: status(1)["under_replicated"] == 0, "nothing is under-replicated")
    assert status(1)["lossy_segments"] == status(1)["offline"] == 0
    where = f"{nodes[1].admin_url}/v1/topics/{_TOPIC}/shards/0/loss"
    with pytest.raises(HTTPError, match="400"):
        urlopen(Request(where, method="PUT", headers=_JSON), timeout=WAIT_S)

    nodes[3].kill()
    nodes.wait_registered(1, 2)
    wait_until(lambda: status(1)["under_replicated"] == _PARTITIONS, "all lack a replica")
    wait_until(lambda: status(1)["offline"] == 0, "all have a leader again")
    assert {each["topic"] for each in status(1)["shards"]} == {_TOPIC}
    assert all(3 not in each["in_sync"] for each in status(1)["shards"])
    wait_until(lambda: status(1)["controller"] in (1, 2), "a node that is there controls")
    with urlopen(f"{nodes[1].admin_url}/metrics", timeout=WAIT_S) as answer:
        scraped = answer.read().decode()
    assert f"firn_under_replicated_shards {_PARTITIONS}.0" in scraped
    assert all(f"\n{name} " in scraped for name in OF_REPLICAS)
    described = nodes.metadata(1, _TOPIC).topics[0].partitions
    assert all(set(each.replica_nodes) == {1, 2, 3} for each in described)
    assert all(tuple(each.offline_replicas) == (3,) for each in described)
    assert all(3 not in each.isr_nodes for each in described)

    nodes[3].start()
    wait_until(lambda: status(2)["under_replicated"] == 0, "the replicas are back")
