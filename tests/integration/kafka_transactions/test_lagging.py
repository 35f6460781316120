"""Transactions on a node whose high watermarks are behind the ends of its logs."""

from collections.abc import Iterator

import pytest

from tests.integration.kafka.nodes import LAGGING, QUICK, NodeProcess
from tests.integration.kafka_transactions.conftest import running
from tests.integration.kafka_transactions.test_clients import (
    test_a_waiting_reader_gets_a_commit_at_once,
    test_an_open_transaction_holds_back_what_comes_after,
    test_commit_and_abort_over_several_partitions,
    test_every_engine_has_transactions,
    test_offsets_are_committed_with_the_transaction,
)

__all__ = [
    "test_a_waiting_reader_gets_a_commit_at_once",
    "test_an_open_transaction_holds_back_what_comes_after",
    "test_commit_and_abort_over_several_partitions",
    "test_every_engine_has_transactions",
    "test_offsets_are_committed_with_the_transaction",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    path = tmp_path_factory.mktemp("lagging") / "data"
    yield from running(NodeProcess(path, QUICK, module=LAGGING))
