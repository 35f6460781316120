"""Fixtures that run every test of a store once per kind of store."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.testing.seaweed import SeaweedServer
from firnmq.tiering.stores import ObjectStore, open_store


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """An empty store."""
    if request.param == "file":
        store = open_store(f"file://{tmp_path}/store")
    else:
        seaweed: SeaweedServer = request.getfixturevalue("seaweed")
        store = open_store(f"{seaweed.url}/{secrets.token_hex(8)}", seaweed.options())
    yield store
    store.close()
