"""Fixtures that run every test of a store once per kind of store."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.testing.seaweed import SeaweedServer
from firnmq.tiering.stores import ObjectStore, open_store
from tests.integration.tiering.hadoop import Hadoop


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    hadoop = Hadoop(tmp_path_factory.mktemp("hadoop"))
    yield hadoop
    hadoop.stop()


@pytest.fixture(params=["file", "s3", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """An empty store."""
    if request.param == "file":
        store = open_store(f"file://{tmp_path}/store")
    elif request.param == "hdfs":
        hadoop: Hadoop = request.getfixturevalue("hadoop")
        store = open_store(f"{hadoop.url}/{secrets.token_hex(8)}")
    else:
        seaweed: SeaweedServer = request.getfixturevalue("seaweed")
        store = open_store(f"{seaweed.url}/{secrets.token_hex(8)}", seaweed.options())
    yield store
    store.close()
