"""One node and one browser for all tests of the console; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.integration.admin.serving import Served
from tests.integration.console.browser import Browser, Page, chromium

_numbers = itertools.count()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("needs chromium")
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab. The test fails if its page logged an error that it did not take from `problems`."""
    found = browser.page()
    yield found
    problems = list(found.problems)
    found.close()
    assert problems == []


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With an object store in a directory."""
    root = tmp_path_factory.mktemp("console")
    served = Served(
        root / "data", settings={"FIRN_TIERING_URL": (root / "store").resolve().as_uri()}
    )
    yield served
    assert served.stop() == 0, "\n".join(served.log)


@pytest.fixture
def topic(node: Served) -> str:
    """A topic with two shards that no other test uses."""
    return make_topic(node, f"console-{next(_numbers)}", 2)


def make_topic(node: Served, name: str, shards: int = 1, **options: str) -> str:
    wanted = {each.replace("_", "."): value for each, value in options.items()}
    body = {"topic": name, "shard_count": shards, "options": wanted}
    answer = node.call("POST", "/v1/topics", body)
    assert answer.status == 200, answer
    return name


def store(node: Served, topic: str, *records: dict[str, object], shard: int | None = None) -> None:
    body: dict[str, object] = {"records": list(records)}
    if shard is not None:
        body["shard"] = shard
    answer = node.call("POST", f"/v1/topics/{topic}/records", body)
    assert answer.status == 200, answer
