"""One node for all tests that leave each other's topics alone, and the command line in-process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from firnmq.cli import main
from tests.integration.admin.serving import Served

_numbers = itertools.count()
QUICK = {
    "FIRN_GROUPS_SESSION_TIMEOUT_MIN_MS": "1000",
    "FIRN_GROUPS_INITIAL_REBALANCE_DELAY_MS": "0",
}


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("admin") / "data", settings=QUICK)
    try:
        yield served
        assert served.process.poll() is None, served.log
    finally:
        assert served.stop() == 0


@pytest.fixture
def topic(node: Served) -> str:
    """A topic with two shards that no other test uses."""
    name = f"t{next(_numbers)}"
    answer = node.call("POST", "/v1/topics", {"topic": name, "shard_count": 2})
    assert answer.status == 200, answer
    return name


Run = Callable[..., Result]


@pytest.fixture
def run(node: Served) -> Run:
    """Runs `firn` in this process against the node."""

    def invoke(*args: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner(env={"FIRN_NODE": node.url}).invoke(main, args, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def documents(run: Run) -> Callable[..., list[Any]]:
    def invoke(*args: str, stdin: str | bytes | None = None) -> list[Any]:
        result = run(*args, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    return invoke
