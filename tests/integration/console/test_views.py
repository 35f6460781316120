"""The views of the console, in a real browser against a real node."""

from __future__ import annotations

import json

import pytest

from tests.integration.admin.serving import Served
from tests.integration.console.browser import Page
from tests.integration.console.conftest import make_topic, store

HOSTILE = "<script>window.ran=1</script><img src=x onerror='window.ran=2'>{{7*7}}\u202eabc\u0007"


def test_the_first_page_tells_health_and_lag(node: Served, page: Page, topic: str) -> None:
    records = [{"key": "ann", "value": str(number)} for number in range(100)]
    store(node, topic, *records, shard=0)  # More than the groups of other tests lag by.
    reset = {"topic": topic, "to": "earliest"}
    assert node.call("POST", f"/v1/groups/{topic}-readers/offsets", reset).status == 200
    page.open(node.url)
    page.wait_for_text("Everything works.")
    page.wait_for_text(f"{topic}-readers")
    assert "no consumer is connected" in page.text("main")
    # From there to the newest record of a key.
    page.fill("form.find input[list]", topic)
    page.fill("form.find .field:nth-of-type(3) input", "ann")
    page.click("form.find button[type=submit]")
    page.wait_for("document.querySelectorAll('.recordtable tbody tr').length === 1")
    assert page.run("location.search") == "?key=ann"


def test_topics_are_filtered_sorted_and_paged(node: Served, page: Page) -> None:
    for number in range(55):
        make_topic(node, f"paged-{number:02}")
    store(node, "paged-07", {"value": "x" * 500})
    page.open(f"{node.url}/topics?filter=paged-")
    page.wait_for_text("1–50 of 55")
    page.key("]")
    page.wait_for_text("51–55 of 55")
    assert "start=50" in page.run("location.search")
    page.run("location.reload()")
    page.wait_for_text("51–55 of 55")
    by_size = "/v1/pages/topics?filter=paged-&sort=length_bytes&max=1"
    while node.get(by_size)["rows"][0]["topic"] != "paged-07":  # Sizes are gathered now and then.
        page.run("new Promise((done) => setTimeout(done, 50))")
    page.click("th button.sort", "Size")
    page.wait_for("document.querySelector('tbody th').innerText === 'paged-07'")
    page.key("/")
    page.fill("input.filter", "paged-1")
    page.wait_for_text("1–10 of 10")
    page.click("tbody th a", "paged-12")
    page.wait_for("document.querySelector('h1').innerText === 'paged-12'")
    assert page.run("document.activeElement.tagName") == "H1"


def test_the_map_shows_where_segments_are(node: Served, page: Page) -> None:
    name = make_topic(
        node,
        "mapped",
        tiering="on",
        segment_bytes="2000",
        local_retention_ms="1000000000",
        local_retention_bytes="4000",
    )
    for number in range(40):
        store(node, name, {"key": f"k{number}", "value": "v" * 300})

    def places() -> list[str]:
        (shard,) = node.get(f"/v1/topics/{name}/places")["shards"]
        return [run["place"] for run in shard["runs"]]

    assert node.call("POST", "/v1/tier/upload", {"topic": name}).status == 200
    page.open(f"{node.url}/topics/{name}/map")
    while places() != ["store", "both", "active"]:  # The mover is at work.
        page.run("new Promise((done) => setTimeout(done, 50))")
    page.open(f"{node.url}/topics/{name}/map")
    parts = page.run("[...document.querySelectorAll('.run')].map((each) => each.ariaLabel)")
    assert [part.replace(",", " ").split()[0] for part in parts] == ["store", "both", "active"]
    page.click(".run.store")
    page.wait_for("document.querySelectorAll('tbody tr').length > 2")
    assert page.run("location.search") == "?shard=0&place=store"
    assert set(page.texts("tbody td:nth-child(2)")) == {"store"}
    page.choose(".listbar select", "active")
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")


def test_records_are_found_by_place_time_key_and_tag(node: Served, page: Page, topic: str) -> None:
    base = 1_700_000_000_000
    for number in range(120):
        document = json.dumps({"number": number, "large": 12345678901234567890})
        store(
            node,
            topic,
            {
                "key": f"k{number % 10}",
                "value": document,
                "timestamp_ms": base + number * 1000,
                "tags": ["even"] if number % 2 == 0 else [],
                "headers": {"trace": f"t{number}"},
            },
            shard=number % 2,
        )
    rows = "document.querySelectorAll('.recordtable tbody tr').length"
    page.open(f"{node.url}/topics/{topic}/records")
    page.wait_for(f"{rows} === 50")
    assert page.texts(".recordtable .open")[:3] == ["1:59", "0:59", "1:58"]
    page.click(".page-next")
    page.wait_for("document.querySelector('.open').innerText === '1:34'")
    page.click(".page-next")
    page.wait_for(f"{rows} === 20")
    assert page.texts(".recordtable .open")[-1] == "0:0"
    assert page.run("document.querySelector('a.page-next')") is None
    # A minute of it.
    page.open(
        f"{node.url}/topics/{topic}/records?since_ms={base + 60_000}&until_ms={base + 65_000}"
    )
    page.wait_for(f"{rows} === 5")
    assert page.texts(".recordtable .open") == ["0:30", "1:30", "0:31", "1:31", "0:32"]
    # A key, and the whole record.
    page.choose("form.search select", "key")
    page.fill("form.search .field:not([hidden]) input:not([type])", "k4")
    page.click("form.search button[type=submit]")
    page.wait_for(f"{rows} === 1")
    page.click("button.open")
    page.wait_for("!!document.querySelector('pre.value')")
    assert page.text("pre.value") == '{\n  "number": 114,\n  "large": 12345678901234567890\n}'
    assert "t114" in page.text(".record")
    page.click(".record .actions a", "All of this key")
    page.wait_for(f"{rows} === 12")
    # A tag.
    page.open(f"{node.url}/topics/{topic}/records?tag=even&shard=0")
    page.wait_for(f"{rows} === 50")
    page.click(".page-next")
    page.wait_for(f"{rows} === 10")


def test_the_tail_shows_records_as_they_are_stored(node: Served, page: Page, topic: str) -> None:
    store(node, topic, {"value": "before"})
    page.open(f"{node.url}/topics/{topic}/records")
    page.click("form.search button", "Follow live")
    page.wait_for("!!document.querySelector('.livestate.live')")
    store(node, topic, {"key": "a", "value": "first"})
    page.wait_for_text("first")
    assert "before" not in page.text(".records")
    page.click(".records button", "Pause")
    store(node, topic, {"key": "b", "value": "second"})
    page.wait_for_text("1 wait")
    assert "second" not in page.text(".records")
    page.click(".records button", "Go on")
    page.wait_for_text("second")
    page.fill("form.search .field:not([hidden]) input:not([type])", "third")
    page.click("form.search button[type=submit]")
    page.wait_for("document.querySelector('main').dataset.shown.includes('contains=third')")
    page.wait_for("!!document.querySelector('.livestate.live')")
    store(node, topic, {"key": "c", "value": "fourth"}, {"key": "d", "value": "the third"})
    page.wait_for_text("the third")
    assert "fourth" not in page.text(".records")


def test_options_are_changed_and_refused_by_name(node: Served, page: Page, topic: str) -> None:
    page.open(f"{node.url}/topics/{topic}/options")
    field = "input[aria-label='retention.ms']"
    page.fill(field, "86400000")
    page.click("button", "Check only")
    page.wait_for_text("Nothing has changed")
    page.click("button", "Save changes")
    page.wait_for(
        f"document.querySelector(\"{field}\").closest('tr').innerText.includes('changed')"
    )
    assert node.get(f"/v1/topics/{topic}/config")["options"]["retention.ms"] == "86400000"
    page.fill("input[aria-label='segment.bytes']", "many")
    page.click("button", "Save changes")
    page.wait_for("!!document.querySelector('.failure')")
    assert "segment.bytes" in page.text(".failure")
    page.problems.clear()  # The browser logs the refusal.
    page.open(f"{node.url}/topics/{topic}/options")
    page.fill(field, "")
    page.click("button", "Save changes")
    page.wait_for(f"document.querySelector(\"{field}\").value === ''")


def test_a_group_is_moved_after_a_dry_run(node: Served, page: Page, topic: str) -> None:
    for number in range(10):
        store(node, topic, {"value": str(number)}, shard=0)
    group = f"{topic}/readers"  # A slash is part of the name.
    path = f"/v1/groups/{group}/offsets"
    assert node.call("POST", path, {"topic": topic, "to": "earliest"}).status == 200
    page.open(f"{node.url}/groups?filter={topic}")
    page.click("tbody th a", group)
    page.wait_for(f"document.querySelector('h1').innerText === {json.dumps(group)}")
    page.wait_for_text("10 records")
    page.click("button", "Move offsets")
    page.choose("dialog select:nth-of-type(1)", topic)
    page.run("document.querySelectorAll('dialog select')[1].value = 'latest'")
    page.click("dialog button", "Dry run: show what would move")
    page.wait_for("document.querySelectorAll('dialog tbody tr').length === 2")
    assert node.get(f"/v1/groups/{group}")["offsets"][0]["committed_offset"] == 0
    page.click("dialog button[type=submit]")
    page.wait_for("!document.querySelector('dialog')")
    page.wait_for_text("0 records")
    assert node.get(f"/v1/groups/{group}")["offsets"][0]["committed_offset"] == 10
    page.click("button", "Delete group")
    page.click("dialog button[type=submit]")
    page.wait_for("location.pathname === '/groups'")
    assert node.call("GET", f"/v1/groups/{group}").status == 404


def test_topics_are_made_and_deleted(node: Served, page: Page) -> None:
    page.open(f"{node.url}/topics")
    page.click("button", "New topic")
    page.fill("dialog input:not([type])", "made-here")
    page.click("dialog button[type=submit]")
    page.wait_for("location.pathname === '/topics/made-here'")
    page.click("button", "Delete topic")
    page.fill("dialog input", "made-there")
    page.click("dialog button[type=submit]")
    page.wait_for_text("That is not the topic's name.")
    page.fill("dialog input", "made-here")
    page.click("dialog button[type=submit]")
    page.wait_for("location.pathname === '/topics'")
    assert node.call("GET", "/v1/topics/made-here").status == 404


@pytest.mark.parametrize("follows", [False, True])
def test_hostile_records_are_shown_as_text(
    node: Served, page: Page, topic: str, follows: bool
) -> None:
    record: dict[str, object] = {
        "key": HOSTILE,
        "value": HOSTILE,
        "headers": {HOSTILE: HOSTILE},
        "tags": [HOSTILE],
    }
    if not follows:
        store(node, topic, record)
    page.open(f"{node.url}/topics/{topic}/records{'?live=1' if follows else ''}")
    if follows:
        page.wait_for("!!document.querySelector('.livestate.live')")
        store(node, topic, record)
    page.click("button.open")
    page.wait_for("!!document.querySelector('pre.value')")
    seen = HOSTILE.replace("\u202e", "\\u202e").replace("\u0007", "\\u0007")
    assert page.run("document.querySelector('pre.value').textContent") == seen
    assert page.run("document.querySelector('.record table th').textContent") == seen
    assert page.run("document.querySelectorAll('main script, main img').length") == 0
    page.click(".record .actions a", "All of this key")
    page.wait_for("document.querySelectorAll('.recordtable tbody tr').length === 1")
    assert page.run("window.ran") is None


def test_a_page_that_is_not_there_says_so(node: Served, page: Page) -> None:
    page.open(f"{node.url}/topics/no-such-topic")
    assert "no-such-topic" in page.text(".failure")
    page.problems.clear()  # The browser logs the 404.
    assert node.call("GET", "/nothing").status == 404
