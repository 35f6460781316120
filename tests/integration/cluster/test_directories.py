"""A node that comes back with another directory, another address, or twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from firnmq.meta import SqliteMetaStore
from firnmq.meta.records import MarkRecord, decode, mark_key
from tests.integration.cluster.checker import read_all
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until

_TOPIC = "kept"
_PARTITIONS = 2


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path, 2)) as found:
        found.start()
        admin = AdminClient({"bootstrap.servers": found[1].address})
        (made,) = admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)]).values()
        made.result(WAIT_S)
        found.wait_leaders(1, _TOPIC)
        yield found


def _refusal(nodes: Nodes, number: int, directory: Path) -> str:
    """What a node says that does not start with a directory."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "firnmq", "serve", "--data", str(directory)),
            *("--port", "0", "--admin-port", "0"),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, **nodes.settings(number)},
    )
    assert done.returncode != 0
    return done.stderr


def _produce(nodes: Nodes, *values: bytes) -> None:
    """Acknowledged, each in every partition."""
    producer = Producer({"bootstrap.servers": nodes.bootstrap})
    failures: list[object] = []
    for partition in range(_PARTITIONS):
        for value in values:
            producer.produce(
                _TOPIC,
                value,
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
    assert producer.flush(WAIT_S) == 0
    assert not failures


def _mark(nodes: Nodes, number: int) -> int:
    """What the metadata knows of a node's directory."""
    store = SqliteMetaStore(nodes.directory / "cluster.db", is_shared=True)
    with closing(store):
        entry = store.get(mark_key(number))
    return 0 if entry is None else decode(entry, MarkRecord).mark


def test_only_the_present_directory_is_taken(nodes: Nodes) -> None:
    directory = nodes.directory / "node2"
    _produce(nodes, b"before")
    wait_until(lambda: _mark(nodes, 2) > 0, "the directory is marked")

    # 1. A copy is made while the node runs, which then stores more, and is killed.
    copy = nodes.directory / "copy"
    shutil.copytree(directory, copy)
    at_copy = _mark(nodes, 2)
    _produce(nodes, b"after")
    wait_until(lambda: _mark(nodes, 2) > at_copy, "the mark is renewed")
    nodes[2].kill()
    refusal = _refusal(nodes, 2, copy)
    assert "an old copy of node 2's directory, made while the node ran" in refusal

    # 2. Neither is an empty one taken, nor that of another node.
    refusal = _refusal(nodes, 2, nodes.directory / "empty")
    assert "node 2 has another directory, and this one is empty" in refusal
    other = nodes.directory / "other"
    shutil.copytree(nodes.directory / "node1", other)
    assert "it is not the directory of node 2" in _refusal(nodes, 2, other)

    # 3. With its own one it goes on, at another address. Nobody need tell the others.
    nodes[2].forget_port()
    nodes[2].start()
    nodes.wait_registered()
    nodes.wait_leaders(1, _TOPIC)
    found = read_all(nodes[1].address, _TOPIC, _PARTITIONS)
    assert [list(each.values()) for each in found.values()] == [[b"before", b"after"]] * 2

    # 4. A copy of what a stopped node has is as good as the directory itself.
    assert nodes[2].terminate() == 0
    moved = nodes.directory / "moved"
    shutil.copytree(directory, moved)
    shutil.rmtree(directory)
    moved.rename(directory)
    nodes[2].start()
    nodes.wait_registered()
    found = read_all(nodes[1].address, _TOPIC, _PARTITIONS)
    assert [list(each.values()) for each in found.values()] == [[b"before", b"after"]] * 2


def test_a_second_process_of_a_node_is_refused(nodes: Nodes) -> None:
    copy = nodes.directory / "copy"
    shutil.copytree(nodes.directory / "node2", copy)
    assert "node 2 runs already and answers at 127.0.0.1:" in _refusal(nodes, 2, copy)
    assert "node2 is served by a node" in _refusal(nodes, 2, nodes.directory / "node2")
    _produce(nodes, b"still there")
    nodes.wait_registered()
