"""Nodes are killed, paused and started again under load. Nothing acknowledged is lost; shards of
other nodes go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.testing.etcd import EtcdCluster
from tests.integration.cluster.checker import CheckedProducer
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until
from tests.integration.meta.etcds import etcd_program

_TOPIC = "load"
_PARTITIONS = 6


@pytest.fixture(params=["sqlite", "etcd"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    etcd = EtcdCluster(etcd_program(), tmp_path / "etcd") if request.param == "etcd" else None
    try:
        with closing(Nodes(tmp_path, etcd=etcd)) as found:
            found.start()
            yield found
    finally:
        if etcd is not None:
            etcd.stop()


def test_a_node_is_killed_and_another_one_paused_under_load(nodes: Nodes) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].address})
    (made,) = admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)]).values()
    made.result(WAIT_S)
    leaders = nodes.wait_leaders(1, _TOPIC)
    producer = CheckedProducer(nodes.bootstrap, _TOPIC, _PARTITIONS)
    try:
        _wait_progress(producer, range(_PARTITIONS))

        # 1. Node 2 is killed. Its shards are away, with an error after which clients ask again.
        nodes[2].kill()
        nodes.wait_registered(1, 3)
        (told,) = nodes.metadata(1, _TOPIC).topics
        codes = {each.partition_index: each.error_code for each in told.partitions}
        for partition, leader in leaders.items():
            expected = ErrorCode.LEADER_NOT_AVAILABLE if leader == 2 else ErrorCode.NONE
            assert codes[partition] == expected

        # 2. The others go on.
        _wait_progress(producer, [each for each, leader in leaders.items() if leader != 2])

        # 3. It comes back, and its shards with it.
        nodes[2].start()
        nodes.wait_registered()
        assert nodes.wait_leaders(3, _TOPIC) == leaders
        _wait_progress(producer, range(_PARTITIONS))

        # 4. Node 3 is paused until its session has ended, and goes on.
        nodes.pause(3)
        try:
            nodes.wait_registered(1, 2)
            _wait_progress(producer, [each for each, leader in leaders.items() if leader != 3])
        finally:
            nodes.resume(3)
        nodes.wait_registered()
        _wait_progress(producer, range(_PARTITIONS))
    finally:
        producer.stop()
    assert not producer.failed
    producer.check(nodes.bootstrap)


def test_nodes_go_on_while_etcd_is_away(tmp_path: Path) -> None:
    etcd = EtcdCluster(etcd_program(), tmp_path / "etcd")
    try:
        with closing(Nodes(tmp_path, etcd=etcd)) as nodes:
            nodes.start()
            admin = AdminClient({"bootstrap.servers": nodes[1].address})
            (made,) = admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)]).values()
            made.result(WAIT_S)
            leaders = nodes.wait_leaders(1, _TOPIC)
            producer = CheckedProducer(nodes.bootstrap, _TOPIC, _PARTITIONS)
            try:
                # 1. Without metadata the nodes serve what they lead.
                _wait_progress(producer, range(_PARTITIONS))
                etcd.kill(0)
                _wait_progress(producer, range(_PARTITIONS))

                # 2. Sessions that have ended are begun again, without a hand.
                etcd.start(0)
                etcd.wait_ready()
                nodes.wait_registered()
                assert nodes.wait_leaders(2, _TOPIC) == leaders
                _wait_progress(producer, range(_PARTITIONS))
                (made,) = admin.create_topics([NewTopic("later", 3, 1)]).values()
                made.result(WAIT_S)
                assert set(nodes.wait_leaders(3, "later").values()) == {1, 2, 3}
            finally:
                producer.stop()
            assert not producer.failed
            producer.check(nodes.bootstrap)
    finally:
        etcd.stop()


def _wait_progress(producer: CheckedProducer, partitions: range | list[int]) -> None:
    """Returns once more records of each partition are acknowledged."""
    before = {each: producer.acknowledged_of(each) for each in partitions}
    wait_until(
        lambda: all(producer.acknowledged_of(each) > count for each, count in before.items()),
        f"records of {before} are acknowledged",
    )
