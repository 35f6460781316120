"""Nodes in processes of their own, and topics with names of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.kafka.nodes import QUICK, NodeProcess

_numbers = itertools.count()

MakeTopic = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """kafka-python's own deprecation warnings are not ours to mend."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node shared by tests that leave each other alone."""
    yield from running(NodeProcess(tmp_path_factory.mktemp("node") / "data", QUICK))


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of the test's own, to kill."""
    yield from running(NodeProcess(tmp_path / "data", QUICK))


def running(node: NodeProcess) -> Iterator[NodeProcess]:
    node.start()
    try:
        yield node
        assert node.is_running, node.errors()
    finally:
        node.close()


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names that no other test has."""
    return lambda stem: f"{stem}-{next(_numbers)}"


@pytest.fixture
def make_topic(new_name: Callable[[str], str]) -> MakeTopic:
    def make(node: NodeProcess, partitions: int = 1, **config: object) -> str:
        name = new_name("topic")
        options = {key.replace("_", "."): str(value) for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": node.address})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=options)
        admin.create_topics([topic])[name].result(60)
        return name

    return make
