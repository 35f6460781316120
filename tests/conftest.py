"""Settings that hold for every test."""

import os

import hypothesis
import pytest

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
