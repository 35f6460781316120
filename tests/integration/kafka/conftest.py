"""Nodes in processes of their own, topics with names of their own, and the clients."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.kafka.clients import CLIENTS, Client
from tests.integration.kafka.nodes import BRISK, QUICK, NodeProcess

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
    """`firn serve` as it comes, shared by tests that leave each other alone."""
    yield from running(NodeProcess(tmp_path_factory.mktemp("node") / "data"))


@pytest.fixture(scope="session")
def quick_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Shared too: groups begin at once and forget crashed members soon; no automatic topics."""
    yield from running(NodeProcess(tmp_path_factory.mktemp("quick") / "data", QUICK))


@pytest.fixture(scope="session")
def brisk_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The same, and members of consumer groups learn soon of what is new."""
    yield from running(NodeProcess(tmp_path_factory.mktemp("brisk") / "data", BRISK))


@pytest.fixture
def own_brisk_node(tmp_path: Path) -> Iterator[NodeProcess]:
    yield from running(NodeProcess(tmp_path / "data", BRISK))


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of the test's own, to stop and kill."""
    yield from running(NodeProcess(tmp_path / "data"))


def running(node: NodeProcess) -> Iterator[NodeProcess]:
    node.start()
    try:
        yield node
        assert node.is_running, node.errors()
    finally:
        node.close()


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test has, and that show whose they are."""

    def make() -> str:
        stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
        return f"{stem[:80]}-{next(_numbers)}"

    return make


@pytest.fixture
def make_topic(new_name: Callable[[], str]) -> MakeTopic:
    """Makes a topic on a node and gives its name."""

    def make(node: NodeProcess, partitions: int = 1, **config: object) -> str:
        name = new_name()
        options = {key.replace("_", "."): str(value) for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": node.address})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=options)
        admin.create_topics([topic])[name].result(60)
        return name

    return make
