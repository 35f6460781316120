"""What the tests with faults share."""

from collections.abc import Iterator

import pytest

from tests.integration.faults.processes import Nursery
from tests.integration.faults.shim import compiled


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Forks processes that are to be killed."""
    made = Nursery(tmp_path_factory.mktemp("nursery") / "log")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def faulty_nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Forks processes whose system calls can be made to fail."""
    directory = tmp_path_factory.mktemp("shim")
    made = Nursery(directory / "log", compiled(directory))
    try:
        yield made
    finally:
        made.close()
