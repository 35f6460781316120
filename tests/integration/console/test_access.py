"""Every view by the rules of accessibility, by keyboard, in both colour schemes, on a phone."""

from __future__ import annotations

import json

import pytest

from tests.integration.admin.serving import Served
from tests.integration.console.axe import axe_source
from tests.integration.console.browser import Page
from tests.integration.console.conftest import make_topic, store

VIEWS = (
    *("/", "/topics", "/topics/{topic}", "/topics/{topic}/map", "/topics/{topic}/records"),
    *("/topics/{topic}/records?live=1", "/topics/{topic}/segments", "/topics/{topic}/options"),
    *("/groups", "/groups/{topic}-group", "/tiering", "/lake", "/users", "/rules", "/sql"),
    *("/sign-in", "/topics/no-such-topic"),
)
_WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def shown(node: Served) -> str:
    """A topic with something to see on each of its pages."""
    name = make_topic(node, "accessible", 2, tiering="on", segment_bytes="2000")
    for number in range(12):
        record = {"key": f"k{number}", "value": json.dumps({"a": [1, {"b": "x" * 200}]})}
        store(node, name, {**record, "tags": ["t"], "headers": {"h": "v"}})
    reset = {"topic": name, "to": "earliest"}
    assert node.call("POST", f"/v1/groups/{name}-group/offsets", reset).status == 200
    return name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", list(_WIDTHS))
def test_no_rule_of_axe_is_broken(
    node: Served, page: Page, shown: str, scheme: str, width: str
) -> None:
    source = axe_source()
    page.prefer(scheme)
    page.resize(*_WIDTHS[width], is_phone=width == "phone")
    broken = []
    for view in VIEWS:
        page.open(node.url + view.format(topic=shown))
        if view.endswith("/records"):
            page.click("button.open")
            page.wait_for("!!document.querySelector('pre.value')")
        elif view == "/":
            page.wait_for("document.querySelectorAll('.card tbody tr').length >= 2")
        page.run(source + "; 0")
        found = page.run("axe.run(document).then((found) => found.violations)")
        for each in found:
            where = [node["target"] for node in each["nodes"][:3]]
            broken.append(f"{view}: {each['id']}: {each['help']} {where}")
        beyond = page.run("document.documentElement.scrollWidth - window.innerWidth")
        if beyond > 0:
            broken.append(f"{view}: is {beyond} px wider than the window")
    page.problems.clear()  # The topic that is not there.
    assert not broken, "\n".join(broken)


def test_dialogs_keep_the_rules_too(node: Served, page: Page, shown: str) -> None:
    source = axe_source()
    for view, button in (
        ("/topics", "New topic"),
        (f"/topics/{shown}", "Delete topic"),
        (f"/groups/{shown}-group", "Move offsets"),
        ("/users", "Add a user"),
        ("/rules", "Add a rule"),
        ("/", "Keys"),
    ):
        page.open(node.url + view)
        page.click("button", button)
        page.wait_for("!!document.querySelector('dialog[open]')")
        page.run(source + "; 0")
        found = page.run("axe.run(document).then((all) => all.violations.map((e) => e.id))")
        assert found == [], view
        page.key("Escape")
        page.wait_for("!document.querySelector('dialog')")


def test_views_are_reached_by_keys(node: Served, page: Page, shown: str) -> None:
    page.open(node.url)
    for key, path in (("t", "/topics"), ("g", "/groups"), ("i", "/tiering"), ("o", "/")):
        page.key("g")
        page.key(key)
        page.wait_for(f"document.querySelector('main').dataset.shown === '{path}'")
    page.key("Tab")
    page.open(node.url + "/topics")
    page.key("/")
    assert page.run("document.activeElement.className") == "filter"
    page.fill("input.filter", shown)
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    page.key("Escape")
    page.key("Tab")
    for _ in range(20):
        if page.run("document.activeElement.innerText") == shown:
            break
        page.key("Tab")
    page.key("Enter")
    page.wait_for(f"location.pathname === '/topics/{shown}'")


def test_the_first_page_is_small_and_needs_nothing_from_elsewhere(
    node: Served, page: Page, shown: str
) -> None:
    page.call("Network.setCacheDisabled", cacheDisabled=True)
    page.open(node.url)
    page.wait_for("document.querySelectorAll('.card tbody tr').length >= 2")
    assert page.received_bytes <= 200_000
    strange = [each for each in page.requests if not each.startswith((node.url, "about:"))]
    assert strange == []


def test_a_node_that_goes_away_is_told_of(page: Page, tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    served = Served(tmp_path / "data")
    page.open(served.url)
    page.wait_for_text("Everything works.")
    port = served.kafka.rpartition(":")[2]
    admin = served.url.rpartition(":")[2]
    assert served.stop() == 0
    page.wait_for_text("The node does not answer.")
    again = Served(tmp_path / "data", settings={"FIRN_ADMIN_PORT": admin}, port=port)
    try:
        page.wait_for_text("Everything works.")
    finally:
        assert again.stop() == 0
    page.problems.clear()
