"""Fixtures that run every test of this folder once per engine and layout.

Tests of a plain store also run with replicas that are late, so that everything is appended, and
some of it read, while the high watermark is behind the end of the log.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import StorageType
from firnmq.testing import LaggingReplication
from tests.conformance.lab import SHARED_FILE, Lab, Shard

STORAGE_TYPES = [*(each.value for each in StorageType), SHARED_FILE]
LAGGING = "-lagging"
LAGGING_TYPES = [
    each + LAGGING for each in (StorageType.MEMORY.value, StorageType.SEGMENT.value, SHARED_FILE)
]
"""The RocksDB engine has the log and the indexes of the segment engine."""
_LONG = ("test_a_thousand_shards", "test_readers_never_notice")
"""Tests that take seconds and would show nothing more."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine_kind" in metafunc.fixturenames:
        has_plain_store = {"lab", "own_lab"} & set(metafunc.fixturenames)
        lags = has_plain_store and metafunc.function.__name__ not in _LONG
        kinds = STORAGE_TYPES + (LAGGING_TYPES if lags else [])
        metafunc.parametrize("engine_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def engine_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def storage_type(engine_kind: str) -> str:
    return engine_kind.removesuffix(LAGGING)


def _lab(path: Path, engine_kind: str) -> Lab:
    replication = LaggingReplication() if engine_kind.endswith(LAGGING) else None
    return Lab(path, engine_kind.removesuffix(LAGGING), replication=replication)


@pytest.fixture(scope="module")
def lab(engine_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A store that the tests of a module share; each makes its own shards."""
    lab = _lab(tmp_path_factory.mktemp("shared"), engine_kind)
    yield lab
    lab.close()


@pytest.fixture
def own_lab(engine_kind: str, tmp_path: Path) -> Iterator[Lab]:
    """A store of the test's own, to be closed and reopened."""
    lab = _lab(tmp_path / "data", engine_kind)
    yield lab
    lab.close()


@pytest.fixture
def shard(lab: Lab) -> Shard:
    """A shard with the default options."""
    return lab.shard()


@pytest.fixture
def small_segments(lab: Lab) -> Shard:
    """A shard that rolls every few batches."""
    return lab.shard({"segment.bytes": 1024})
