"""Names, records and options from strangers are text on every page."""

from __future__ import annotations

import json
import random
from urllib.parse import quote

import pytest

from tests.integration.admin.serving import Served
from tests.integration.console.browser import Page
from tests.integration.console.conftest import make_topic, store

_PIECES = (
    *("<script>window.ran=1</script>", "<img src=x onerror='window.ran=1'>", "<svg onload=ran=1>"),
    *("javascript:window.ran=1", "'\"><b>", "</textarea>", "<!--", "]]>", "&lt;b&gt;", "{{ran}}"),
    *(
        "${ran}",
        "\u202eright",
        "\u2028",
        "\x00",
        "\x1b[31m",
        "\ufeff",
        "e\u0301",
        "😀",
        "../..",
        "%2e",
    ),
    *("?a=b&c", "#x", "a/b", "\\", " ", "\n", "\t", "__proto__", "constructor", "data:text/html,x"),
)
_ALLOWED = {
    *("A", "B", "BUTTON", "CAPTION", "CODE", "DATALIST", "DD", "DIV", "DL", "DT", "FIGCAPTION"),
    *("FIGURE", "FORM", "H1", "H2", "H3", "I", "INPUT", "LABEL", "LI", "NAV", "OL", "OPTION", "P"),
    *("PRE", "SECTION", "SELECT", "SMALL", "SPAN", "STRONG", "TABLE", "TBODY", "TD", "TEXTAREA"),
    *("TH", "THEAD", "TR", "UL", "svg", "line", "polyline"),
}
"""What the console's own pages are made of."""


def texts(seed: int, count: int) -> list[str]:
    chosen = random.Random(seed)
    return ["".join(chosen.choices(_PIECES, k=chosen.randint(1, 6))) for _ in range(count)]


def check(page: Page) -> None:
    tags = page.run("[...new Set([...document.querySelectorAll('main *')].map((e) => e.tagName))]")
    assert set(tags) <= _ALLOWED
    assert page.run("window.ran") is None
    strange = page.run("""[...document.querySelectorAll('main a')].map((each) => each.href)
        .filter((each) => !each.startsWith(location.origin + '/'))""")
    assert strange == []
    listening = page.run("""[...document.querySelectorAll('main *')].some((each) =>
        [...each.attributes].some((one) => one.name.startsWith('on') || one.name === 'style'
            && each.tagName !== 'A' && each.tagName !== 'DIV'))""")
    assert listening is False


@pytest.mark.parametrize("seed", range(3))
def test_records_are_text(node: Served, page: Page, seed: int) -> None:
    name = make_topic(node, f"fuzzed-{seed}", tag_headers="tag,<b>tag</b>")
    for text, other in zip(texts(seed, 20), texts(seed + 100, 20), strict=True):
        record = {"key": text, "value": other, "headers": {text: other}, "tags": [other]}
        store(node, name, record)
    page.open(f"{node.url}/topics/{name}/records")
    page.wait_for("document.querySelectorAll('.recordtable > tbody > tr').length === 20")
    page.run("document.querySelectorAll('button.open').forEach((each) => each.click())")
    page.wait_for("document.querySelectorAll('pre.value').length >= 19")
    check(page)
    links = page.run("[...document.querySelectorAll('.record .actions a')].map((e) => e.href)")
    for address in links[1:12:4]:  # All of this key.
        page.open(address)
        page.wait_for("!!document.querySelector('.recordtable button.open')")
        check(page)
    page.open(f"{node.url}/topics/{name}/options")
    page.wait_for("!!document.querySelector('input[aria-label=\"segment.bytes\"]')")
    assert "<b>tag</b>" in page.text("main")
    check(page)


def test_names_of_groups_and_users_are_text(node: Served, page: Page) -> None:
    topic = make_topic(node, "for-names")
    store(node, topic, {"value": "x"})
    groups = []
    for text in texts(7, 30):
        group = f"fuzz{text}"
        path = f"/v1/groups/{quote(group, safe='')}/offsets"
        answer = node.call("POST", path, {"topic": topic, "to": "earliest"})
        if answer.status == 200:  # The node refuses some names itself.
            groups.append(group)
    assert len(groups) > 10
    page.open(f"{node.url}/groups?filter=fuzz")
    page.wait_for(f"document.querySelectorAll('tbody tr').length === {len(set(groups))}")
    check(page)
    for group in groups[:5]:
        page.open(f"{node.url}/groups/{quote(group, safe='')}")
        page.wait_for("document.querySelectorAll('.list tbody tr').length === 1")
        check(page)
    page.open(f"{node.url}/groups?filter={quote(_PIECES[0], safe='')}")
    page.wait_for("!!document.querySelector('tbody')")
    check(page)
    users = []
    for number, text in enumerate(texts(8, 10)):
        answer = node.call(
            "PUT", f"/v1/users/{quote(f'u{number}{text}', safe='')}", {"password": "secret"}
        )
        if answer.status == 200:
            users.append(f"u{number}{text}")
    page.open(f"{node.url}/users")
    page.wait_for(f"document.querySelectorAll('tbody tr').length >= {max(len(users), 1)}")
    check(page)
    for user in users:
        assert node.call("DELETE", f"/v1/users/{quote(user, safe='')}").status == 200


def test_addresses_from_strangers_are_harmless(node: Served, page: Page) -> None:
    for address in (
        "/topics/%3Cscript%3Ewindow.ran=1%3C%2Fscript%3E",
        "/topics/%E0%A4%A",
        "/topics?filter=%3Cimg%20src=x%20onerror=ran=1%3E",
        "/sign-in?next=//evil.example/",
        "/sign-in?next=javascript:window.ran=1",
        "/nowhere/at/all",
        "/groups/%00",
        "/topics/for-names/records?cursor=zzz",
    ):
        if address.startswith("/nowhere"):
            assert node.call("GET", address).status == 404
            continue
        page.open(f"{node.url}{address}")
        check(page)
    page.problems.clear()


def test_the_policy_has_no_holes(node: Served) -> None:
    import http.client

    connection = http.client.HTTPConnection(node.url.removeprefix("http://"), timeout=30)
    for path in ("/", "/assets/app.js", "/assets/console.css", "/topics/x"):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        policy = answer.getheader("content-security-policy") or ""
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert answer.getheader("x-content-type-options") == "nosniff"
        if path == "/":
            assert "<script>" not in text
            assert " style=" not in text
            assert "http" not in text.replace("/", "").replace("httpequiv", "")
    connection.request("GET", "/v1/topics")
    answer = connection.getresponse()
    assert isinstance(json.loads(answer.read()), list)
    assert answer.getheader("x-content-type-options") == "nosniff"
    connection.close()
