"""Fixtures that run every test of a store once per kind of store."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firnmq.config import TieringConfig
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from firnmq.tiering.stores import ObjectStore, open_store
from tests.integration.tiering.hadoop import Hadoop

QUICK: dict[str, Any] = {"retry_ms": 1, "retry_ms_max": 2, "interval_ms": 20}
"""The backoff after a failure is short."""


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


@pytest.fixture(params=["file", "s3"])
def tiering(request: pytest.FixtureRequest, tmp_path: Path) -> TieringConfig:
    """Settings for an empty store of each kind."""
    return tiering_config(request, tmp_path, request.param)


@pytest.fixture
def file_tiering(tmp_path: Path) -> TieringConfig:
    return TieringConfig(url=f"file://{tmp_path}/objects", **QUICK)


@pytest.fixture
def s3_tiering(request: pytest.FixtureRequest, tmp_path: Path) -> TieringConfig:
    return tiering_config(request, tmp_path, "s3")


def tiering_config(request: pytest.FixtureRequest, path: Path, kind: str) -> TieringConfig:
    if kind == "file":
        return TieringConfig(url=f"file://{path}/objects", **QUICK)
    seaweed: SeaweedServer = request.getfixturevalue("seaweed")
    return TieringConfig(
        url=f"{seaweed.url}/{secrets.token_hex(8)}",
        endpoint=seaweed.endpoint,
        region="us-east-1",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        allow_http=True,
        **QUICK,
    )
