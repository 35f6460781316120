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
from tests.conformance.replicated import ReplicatedLab

STORAGE_TYPES = [*(each.value for each in StorageType), SHARED_FILE]
LAGGING = "-lagging"
LAGGING_TYPES = [
    each + LAGGING for each in (StorageType.MEMORY.value, StorageType.SEGMENT.value, SHARED_FILE)
]
"""The RocksDB engine has the log and the indexes of the segment engine."""
REPLICATED = StorageType.SEGMENT.value + "-replicated"
_REPLICATED_MODULES = (
    "test_append",
    "test_content",
    "test_delete",
    "test_expiry",
    "test_raw_batches",
    "test_read_by_key",
    "test_read_by_offset",
    "test_read_by_tag",
    "test_read_by_time",
    "test_stored",
    "test_time",
)
"""Whose tests also run on logs that lead after a failover. Compaction and truncation are not for
logs with other replicas, and one that restarts does not lead."""
_TRUNCATES = "test_a_cut_takes_back_what_was_known"
_LONG = ("test_a_thousand_shards", "test_readers_never_notice")
"""Tests that take seconds and would show nothing more."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine_kind" in metafunc.fixturenames:
        has_plain_store = {"lab", "own_lab"} & set(metafunc.fixturenames)
        lags = has_plain_store and metafunc.function.__name__ not in _LONG
        kinds = STORAGE_TYPES + (LAGGING_TYPES if lags else [])
        module = metafunc.module.__name__.rpartition(".")[2]
        is_for_replicas = module in _REPLICATED_MODULES and metafunc.function.__name__ != _TRUNCATES
        if "lab" in metafunc.fixturenames and is_for_replicas:
            kinds = [*kinds, REPLICATED]
        metafunc.parametrize("engine_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def engine_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def storage_type(engine_kind: str) -> str:
    return engine_kind.removesuffix(LAGGING).removesuffix("-replicated")


def _lab(path: Path, engine_kind: str) -> Lab:
    if engine_kind == REPLICATED:
        return ReplicatedLab(path, StorageType.SEGMENT.value)
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
