"""The console of a node with 1,000 topics and 10,000 groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.adapter import CommittedOffset
from firnmq.config import TopicConfig
from firnmq.disk import Family, run_blocking
from firnmq.server.local import LocalStore
from tests.integration.admin.serving import Served
from tests.integration.console.browser import Page
from tests.integration.console.conftest import store

TOPICS, GROUPS = 1_000, 10_000
LAGGING = "group-07331"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("large") / "data"
    directory.mkdir()
    _fill(directory)
    served = Served(directory)
    store(served, "topic-0500", *({"value": "x"} for _ in range(7)))
    yield served
    assert served.stop() == 0


def _fill(directory: Path) -> None:
    """Written into the directory itself: a client would take minutes."""
    local = LocalStore(directory, background=False)
    try:
        for number in range(TOPICS):
            run_blocking(local.manager.create_topic(f"topic-{number:04}", 1, TopicConfig()))
        topic = local.catalog.get("topic-0500")
        with local.kv.row_lock:
            rows = []
            for number in range(GROUPS):
                name = f"group-{number:05}"
                # At its end, but for one.
                entry = CommittedOffset(offset=0 if name == LAGGING else 7, committed_ms=1)
                rows += local.offset_rows.put(name, {topic.shard_name(0): entry})
            with local.kv.batch() as batch:
                batch.put_many(Family.STATE, rows)
    finally:
        local.close()


@pytest.mark.slow
def test_lists_of_thousands(large: Served, page: Page) -> None:
    page.call("Network.setCacheDisabled", cacheDisabled=True)
    page.open(large.url)
    page.wait_for_text("1,000")
    page.wait_for_text(LAGGING)
    assert page.received_bytes <= 200_000
    page.wait_for_text("no consumer is connected")
    took_ms = page.run(
        "Math.max(...performance.getEntriesByType('resource').map((each) =>"
        "each.name.includes('events') ? 0 : each.responseEnd))"
    )
    print(f"first page: {took_ms:.0f} ms, {page.received_bytes:,} bytes")  # Shown with -s.
    page.click("a", LAGGING)
    page.wait_for("document.querySelectorAll('.list tbody tr').length === 1")

    page.open(f"{large.url}/groups?sort=lag")
    page.wait_for_text("1–50 of 10,000")
    assert page.texts("tbody th")[0] == LAGGING
    page.key("]")
    page.wait_for_text("51–100 of 10,000")
    page.key("/")
    page.fill("input.filter", "0733")
    page.wait_for_text("1–11 of 11")

    page.open(f"{large.url}/topics?sort=record_count")
    page.wait_for_text("1–50 of 1,000")
    assert page.texts("tbody th")[0] == "topic-0500"
    for _ in range(19):
        page.wait_for("!document.querySelector('.page-next').disabled")
        before = page.run("location.search")
        page.key("]")
        page.wait_for(f"location.search !== '{before}'")
    page.wait_for_text("951–1,000 of 1,000")
    # Only a page of it was ever asked for.
    largest = page.run(
        "Math.max(...performance.getEntriesByType('resource').map((each) => each.decodedBodySize))"
    )
    assert largest < 100_000
