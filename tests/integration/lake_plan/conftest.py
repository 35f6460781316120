"""Nodes in processes of their own, for plans and their readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kafka.nodes import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """`firn serve` with a directory as its object store, that moves segments at once."""
    root = tmp_path_factory.mktemp("node")
    node = NodeProcess(root / "data", tiered(root))
    node.start()
    try:
        yield node
        assert node.is_running, node.errors()
    finally:
        node.close()


def tiered(root: Path) -> dict[str, str]:
    return {
        "FIRN_TIERING_URL": f"file://{root / 'objects'}",
        "FIRN_TIERING_CLUSTER": "lab",
        "FIRN_TIERING_INTERVAL_MS": "20",
        "FIRN_TIERING_CACHE_BYTES": "1000000",
    }
