"""Stores for plans and their readers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import StorageType
from tests.conformance.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", StorageType.SEGMENT.value)
    yield lab
    lab.close()
