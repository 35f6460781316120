"""Tiering with its cost, the lake and SQL, users, rules, the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.integration.admin.serving import Served, firn
from tests.integration.console.browser import Page
from tests.integration.console.conftest import make_topic, store
from tests.integration.processes.served import Machine

ROWS = "document.querySelectorAll('.list tbody tr').length"


def test_tiering_tells_what_is_where_and_what_it_costs(node: Served, page: Page) -> None:
    options = {"tiering": "on", "segment_bytes": "2000", "tiering_upload_delay_ms": "86400000"}
    name = make_topic(node, "tiered", **options)
    for number in range(20):
        store(node, name, {"value": f"{number}" * 300})
    page.open(f"{node.url}/tiering")
    page.wait_for_text("What waits, and why")
    assert name in page.texts("#main .card td, #main .card th")
    page.click("button", "Seal and upload everything")

    def waiting() -> int:
        (row,) = [each for each in node.get("/v1/tier")["topics"] if each["topic"] == name]
        return int(row["waiting_segments"])

    while waiting():
        page.run("new Promise((done) => setTimeout(done, 50))")
    page.open(f"{node.url}/tiering?topic={name}")
    page.wait_for_text(f"What the history of {name} costs a month")
    page.fill(".cost .field:nth-of-type(2) input", "2000")
    page.fill(".cost .field:nth-of-type(3) input", "100")
    page.click(".cost button[type=submit]")
    page.wait_for("location.search.includes('bytes_per_day=2000000000000')")
    page.wait_for_text("given below")
    found = node.get(f"/v1/tier/cost{page.run('location.search')}")
    assert f"{found['tiered']:,.2f}" in page.text("main")
    assert found["month"]["history_bytes"] == 200e12
    page.click("button", "Compare with the store")
    page.wait_for_text("Nothing was changed.")


def test_users_are_added_and_removed(node: Served, page: Page) -> None:
    page.open(f"{node.url}/users")
    page.click("button", "Add a user")
    for number, text in enumerate(("ann", "secret-1", "secret-2"), 1):
        page.fill(f"dialog .field:nth-of-type({number}) input", text)
    page.click("dialog button[type=submit]")
    page.wait_for_text("The two passwords differ.")
    page.fill("dialog .field:nth-of-type(3) input", "secret-1")
    page.click("dialog button[type=submit]")
    page.wait_for("document.querySelector('.list tbody th')?.innerText === 'ann'")
    assert node.get("/v1/users") == [{"user": "ann"}]
    page.click("button[aria-label='Remove ann']")
    page.click("dialog button[type=submit]")
    page.wait_for_text("There are no users.")
    assert node.get("/v1/users") == []


def test_rules_are_added_and_removed(node: Served, page: Page) -> None:
    page.open(f"{node.url}/rules")
    page.click("button", "Add a rule")
    page.fill("dialog .field:nth-of-type(1) input", "User:ann")
    page.fill("dialog .field:nth-of-type(5) input", "orders-")
    page.run("document.querySelectorAll('dialog select')[3].value = 'prefixed'")
    page.click("dialog button[type=submit]")
    page.wait_for(f"{ROWS} === 1 && document.body.innerText.includes('and longer')")
    (rule,) = node.get("/v1/rules")
    assert (rule["principal"], rule["operation"], rule["pattern"]) == (
        *("User:ann", "read", "prefixed"),
    )
    page.click(".list button.danger")
    page.click("dialog button[type=submit]")
    page.wait_for_text("There are no rules.")
    assert node.get("/v1/rules") == []


@pytest.mark.slow
def test_sql_and_the_table_of_a_topic(tmp_path: Path, page: Page) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("pyiceberg")
    served = Served(tmp_path / "data")
    try:
        make_topic(served, "clicks", 2)
        for number in range(30):
            store(served, "clicks", {"key": f"k{number % 3}", "value": "<b>bold</b>"})
        page.open(f"{served.url}/lake")
        page.wait_for_text("No topic has a table yet.")
        done = firn("lake", "sync", "clicks", "--data", str(tmp_path / "data"))
        assert done.returncode == 0, done.stderr
        store(served, "clicks", {"key": "late", "value": "x"})
        page.open(f"{served.url}/lake")
        page.wait_for(f"{ROWS} === 1 && document.body.innerText.includes('1 record')")
        page.click(".list td a", "topics.clicks")
        page.wait_for_text("Snapshots")
        page.wait_for_text("append")
        page.open(f"{served.url}/topics/clicks/map")
        page.wait_for("document.querySelectorAll('.intable .fill').length >= 1")

        query = "SELECT key, count(*) AS n, max(value) AS v FROM clicks GROUP BY key ORDER BY key"
        page.open(f"{served.url}/sql")
        page.fill("textarea", query)
        page.click("button", "Run")
        page.wait_for("document.querySelectorAll('.results tbody tr').length === 4")
        assert page.texts(".results tbody tr") == [
            *(f"k{number}\t10\t<b>bold</b>" for number in range(3)),
            "late\t1\tx",
        ]
        assert "query=SELECT" in page.run("location.search")
        for wrong in (
            "SELECT * FROM text.`/etc/passwd`",
            "SELECT * FROM clicks, text.`/etc/passwd`",
            "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
            "SELECT `java_method`('java.lang.System', 'getenv', 'HOME')",
            "SELECT '${env:HOME}'",
            "FROM clicks INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT *",
            "SELECT TRANSFORM(key) USING 'cat' FROM clicks",
            "FROM clicks MAP key USING 'cat' AS x",
            "CREATE TABLE t (a INT)",
            "SET spark.sql.runSQLOnFiles=true",
            "SELECT no_such_column FROM clicks",
            "SELECT * FROM nothing",
        ):
            answer = served.call("POST", "/v1/sql", {"query": wrong})
            assert answer.status in (400, 409), (wrong, answer)
        page.fill("textarea", "SELECT 1; DROP TABLE clicks")
        page.click("button", "Run")
        page.wait_for("!!document.querySelector('.results .failure')")
        page.problems.clear()
    finally:
        assert served.stop() == 0, "\n".join(served.log)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("machine") / "data")
    found.start()
    body = json.dumps({"topic": "led", "shard_count": 6}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{found.url}/v1/topics", body, headers), timeout=60) as answer:
        assert answer.status == 200
    yield found
    found.close()


def test_a_cluster_shows_nodes_and_leaders(machine: Machine, page: Page) -> None:
    """Every request may reach another process: sessions, samples and lists must not care."""
    page.open(f"{machine.url}/topics")
    page.click("button", "New topic")
    page.fill("dialog input:not([type])", "spread")
    page.fill("dialog input[type=number]", "6")
    page.click("dialog button[type=submit]")
    page.wait_for("location.pathname === '/topics/spread'")
    page.click(".views a", "Cluster")
    page.wait_for("document.querySelector('h1').innerText === 'Cluster'")
    page.fill("input.filter", "spread")
    page.wait_for(f"{ROWS} === 6")
    assert set(page.texts(".list tbody td:nth-child(3)")) == {"node 1", "node 2"}
    assert page.texts(".card tbody th") == ["node 1", "node 2"]
    page.choose(".listbar label:nth-of-type(2) select", "2")
    page.wait_for("document.querySelector('main').dataset.shown.includes('node=2')")
    page.fill("input.filter", "spread")
    page.wait_for(f"{ROWS} === 3")
    page.open(f"{machine.url}/topics/spread/map")
    page.wait_for("document.querySelectorAll('.nodes').length === 6")
    page.open(machine.url)
    page.wait_for_text("2 ready")
    page.wait_for("document.querySelectorAll('polyline').length >= 5")
    page.open(f"{machine.url}/lake")
    page.wait_for_text("No topic has a table yet.")


def test_groups_of_all_nodes_are_listed(machine: Machine, page: Page) -> None:
    page.open(f"{machine.url}/groups")
    for number in range(8):
        body = json.dumps({"topic": "led", "to": "earliest"})
        status = page.run(f"""fetch('/v1/session', {{method: 'POST', body: '{{}}',
            headers: {{'content-type': 'application/json'}}}}).then((found) => found.json())
            .then((found) => fetch('/v1/groups/g{number}/offsets', {{method: 'POST', body: {body!r},
            headers: {{'content-type': 'application/json', 'x-firn-proof': found.proof}}}}))
            .then((found) => found.status)""")
        assert status == 200
    page.wait_for(
        "fetch('/v1/pages/groups').then((found) => found.json())"
        ".then((found) => window.total = found.total) && window.total === 8"
    )
    page.open(f"{machine.url}/groups")
    page.wait_for(f"{ROWS} === 8")
    page.click(".list tbody a", "g3")
    page.wait_for("document.querySelector('h1').innerText === 'g3'")
    page.wait_for(f"{ROWS} === 6")
