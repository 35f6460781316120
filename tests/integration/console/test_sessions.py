"""Signing in: sessions of two halves, roles, and changes that other pages cannot make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.admin.serving import Served
from tests.integration.console.browser import Page

TOKENS = "viewer read aaaa\noperator operate bbbb\n"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node that requires a token."""
    root = tmp_path_factory.mktemp("guarded")
    (root / "tokens").write_text(TOKENS)
    served = Served(root / "data", settings={"FIRN_ADMIN_TOKENS_FILE": str(root / "tokens")})
    answer = served.call("POST", "/v1/topics", {"topic": "seen"})
    assert answer.status == 200, answer
    yield served
    assert served.stop() == 0


def sign_in(page: Page, served: Served, token: str) -> None:
    page.fill("form.signin input", token)
    page.click("form.signin button[type=submit]")


def test_a_page_signs_in_and_out(guarded: Served, page: Page) -> None:
    page.open(f"{guarded.url}/topics/seen")
    page.wait_for("location.pathname === '/sign-in'")
    sign_in(page, guarded, "wrong")
    page.wait_for_text("this is none of the node's tokens")
    assert guarded.token is not None
    sign_in(page, guarded, guarded.token)
    page.wait_for("location.pathname === '/topics/seen'")  # Where the user wanted to go.
    page.wait_for_text("admin.token · administer")
    assert page.run("document.cookie") == ""  # No script can read it.
    page.run("location.reload()")
    page.wait_for("document.querySelector('h1')?.innerText === 'seen'")
    page.click("button", "Sign out")
    page.wait_for("location.pathname === '/sign-in'")
    page.open(f"{guarded.url}/topics")
    page.wait_for("location.pathname === '/sign-in'")
    page.problems.clear()  # The browser logs each refusal.


def test_a_reader_gets_no_buttons_for_changes(guarded: Served, page: Page) -> None:
    page.open(f"{guarded.url}/topics/seen/options")
    sign_in(page, guarded, "aaaa")
    page.wait_for_text("viewer · read")
    page.wait_for_text("Your role may look at options and not change them.")
    assert "Delete topic" not in page.text("main")
    assert page.run("document.querySelectorAll('main input').length") == 0
    views = page.texts(".views a")
    assert "Users" not in views
    assert "SQL" not in views
    # The node refuses what the page does not offer.
    proof = page.run("localStorage.getItem('firn.proof')")
    status = page.run(f"""fetch('/v1/topics/seen', {{method: 'DELETE',
        headers: {{'x-firn-proof': {json.dumps(proof)}}}}}).then((found) => found.status)""")
    assert status == 403
    page.problems.clear()


def opened(served: Served, token: str | None = None) -> tuple[str, str]:
    """Cookie and proof of a session."""
    import http.client

    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
    body = json.dumps({} if token is None else {"token": token})
    connection.request("POST", "/v1/session", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    document: dict[str, Any] = json.loads(answer.read())
    cookie = answer.getheader("set-cookie") or ""
    connection.close()
    assert answer.status == 200, document
    assert "; HttpOnly" in cookie
    assert "; SameSite=Strict" in cookie
    return cookie.partition(";")[0], document["proof"]


@pytest.mark.parametrize("halves", ["cookie", "proof", "none", "other cookie", "other proof"])
def test_half_a_session_permits_nothing(guarded: Served, halves: str) -> None:
    cookie, proof = opened(guarded, "bbbb")
    other_cookie, other_proof = opened(guarded, "aaaa")
    sent = {
        "cookie": {"Cookie": cookie},
        "proof": {"x-firn-proof": proof},
        "none": {},
        "other cookie": {"Cookie": other_cookie, "x-firn-proof": proof},
        "other proof": {"Cookie": cookie, "x-firn-proof": other_proof},
    }[halves]
    assert ask(guarded, "GET", "/v1/topics", sent) == 401
    assert ask(guarded, "GET", "/v1/topics", {"Cookie": cookie, "x-firn-proof": proof}) == 200


def ask(
    served: Served, method: str, path: str, headers: dict[str, str], body: str | None = None
) -> int:
    """Without the token that `Served.call` sends."""
    import http.client

    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    status = connection.getresponse().status
    connection.close()
    return status


def test_an_operator_may_operate_and_not_administer(guarded: Served) -> None:
    cookie, proof = opened(guarded, "bbbb")
    session = {"Cookie": cookie, "x-firn-proof": proof}
    made = ask(guarded, "POST", "/v1/topics", session, '{"topic": "made"}')
    assert made == 200
    assert ask(guarded, "GET", "/v1/users", session) == 403
    assert ask(guarded, "GET", "/v1/pages/users", session) == 403
    assert ask(guarded, "POST", "/v1/sql", session, '{"query": "SELECT 1"}') == 403


def test_without_a_token_a_page_still_needs_a_session(node: Served) -> None:
    origin = {"Origin": node.url}
    body = '{"topic": "made-by-a-page"}'
    assert ask(node, "POST", "/v1/topics", origin, body) == 403
    cookie, proof = opened(node)
    halves = {"Cookie": cookie, "x-firn-proof": proof}
    assert ask(node, "POST", "/v1/topics", {**origin, "Cookie": cookie}, body) == 403
    assert ask(node, "POST", "/v1/topics", {**halves, "Origin": "http://evil.example"}, body) == 403
    assert ask(node, "POST", "/v1/topics", {**halves, **origin}, body) == 200
    # Programs send no Origin, and need nothing.
    assert ask(node, "DELETE", "/v1/topics/made-by-a-page", {}) == 200


def test_another_site_cannot_frame_or_read(node: Served, page: Page, tmp_path: Path) -> None:
    answer = node.call("GET", "/")
    assert answer.status == 200
    other = tmp_path / "other.html"
    other.write_text(f"<h1>other</h1><main id=main><h1>x</h1></main><iframe src='{node.url}/'>")
    page.call("Page.navigate", url=other.as_uri())
    page.wait_for("document.readyState === 'complete'")
    blocked = page.run(f"fetch('{node.url}/v1/topics').then(() => 'read', () => 'blocked')")
    assert blocked == "blocked"
    page.wait_for("true")
    assert any("frame-ancestors" in each or "ERR_BLOCKED" in each for each in page.problems)
    page.problems.clear()
