"""Settings that hold for every test."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

from firnmq.testing.seaweed import SeaweedServer

# No deadline: a shared machine that stalls for a moment is not a failing property.
hypothesis.settings.register_profile("firnmq", deadline=None, print_blob=True)
hypothesis.settings.load_profile("firnmq")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs root where we are not root."""
    if os.geteuid() == 0:
        return
    skip = pytest.mark.skip(reason="needs root privileges")
    for item in items:
        if "root" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _umask_stays() -> Iterator[None]:
    """The umask is the process's: a test that leaves another one behind changes later tests."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    after = os.umask(before)
    assert after == before, f"the test left the umask {after:#o}, not {before:#o}"


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """An S3 server for all tests, with a bucket `tier`. Take a prefix of your own in it, and leave
    it running; a test that stops or pauses its server starts one itself.
    """
    server = SeaweedServer(tmp_path_factory.mktemp("seaweed"))
    yield server
    server.stop()
