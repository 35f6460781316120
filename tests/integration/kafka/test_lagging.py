"""Clients of a node whose high watermarks are behind the ends of its logs notice nothing."""

from collections.abc import Iterator

import pytest

from tests.integration.kafka.conftest import running
from tests.integration.kafka.nodes import LAGGING, NodeProcess
from tests.integration.kafka.test_records import (
    test_a_reader_at_the_end_sees_what_comes_next,
    test_every_storage_type_keeps_every_record,
    test_large_records,
    test_many_partitions,
    test_positions,
)

__all__ = [
    "test_a_reader_at_the_end_sees_what_comes_next",
    "test_every_storage_type_keeps_every_record",
    "test_large_records",
    "test_many_partitions",
    "test_positions",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    yield from running(NodeProcess(tmp_path_factory.mktemp("lagging") / "data", module=LAGGING))
