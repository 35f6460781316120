"""Fixtures that run every test of this folder once per engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import StorageType
from tests.conformance.lab import Lab, Shard

STORAGE_TYPES = [each.value for each in StorageType]


@pytest.fixture(scope="module", params=STORAGE_TYPES)
def storage_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def lab(storage_type: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A store that the tests of a module share; each makes its own shards."""
    lab = Lab(tmp_path_factory.mktemp("shared"), storage_type)
    yield lab
    lab.close()


@pytest.fixture
def own_lab(storage_type: str, tmp_path: Path) -> Iterator[Lab]:
    """A store of the test's own, to be closed and reopened."""
    lab = Lab(tmp_path / "data", storage_type)
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
