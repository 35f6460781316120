"""Sessions of the console: both halves, their end, and what changing a token does."""

from __future__ import annotations

import pytest

from firnmq.server.admin.http.sessions import SESSION_S, Sessions, cookie_name
from firnmq.server.admin.http.token import ANYBODY, Caller, Role, TokenOf, Tokens

HOST = "127.0.0.1:9644"
ANN = Caller(name="ann", role=Role.READ)
BEN = Caller(name="ben", role=Role.OPERATE)


class Time:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def sessions(*tokens: tuple[bytes, Caller], now_s: Time | None = None) -> Sessions:
    return Sessions(Tokens([TokenOf(token, caller) for token, caller in tokens]), now_s or Time())


def halves(found: Sessions, token: bytes) -> tuple[str, str]:
    opened = found.open(HOST, token)
    assert opened is not None
    return opened.cookie.partition(";")[0], opened.proof


def test_a_session_is_its_tokens() -> None:
    found = sessions((b"a", ANN), (b"b", BEN))
    for token, caller in ((b"a", ANN), (b"b", BEN)):
        assert found.caller(HOST, *halves(found, token)) == caller
    assert found.open(HOST, b"c") is None
    assert found.open(HOST, b"") is None


def test_another_process_with_the_same_tokens_knows_it() -> None:
    made, asked = sessions((b"a", ANN)), sessions((b"b", BEN), (b"a", ANN))
    assert asked.caller(HOST, *halves(made, b"a")) == ANN


def test_it_ends_with_its_token_and_its_time() -> None:
    clock = Time()
    made = sessions((b"a", ANN), now_s=clock)
    cookie, proof = halves(made, b"a")
    assert sessions((b"other", ANN), now_s=clock).caller(HOST, cookie, proof) is None
    clock.now_s += SESSION_S - 1
    assert made.caller(HOST, cookie, proof) == ANN
    clock.now_s += 1
    assert made.caller(HOST, cookie, proof) is None


def test_a_longer_time_is_noticed() -> None:
    found = sessions((b"a", ANN))
    cookie, proof = halves(found, b"a")
    name, _, value = cookie.partition("=")
    until, _, rest = value.partition(".")
    assert found.caller(HOST, f"{name}={int(until) + 1}.{rest}", proof) is None


@pytest.mark.parametrize(
    "cookies", ["", "x", "firn-session-9644=", "firn-session-9644=9999999999.a.b", "=;=;", "\x00"]
)
def test_other_cookies_are_no_session(cookies: str) -> None:
    assert sessions((b"a", ANN)).caller(HOST, cookies, "proof") is None
    assert sessions((b"a", ANN)).caller(HOST, cookies, "") is None


def test_without_tokens_everyone_has_one() -> None:
    found = sessions()
    cookie, proof = halves(found, b"")
    assert found.caller(HOST, cookie, proof) == ANYBODY
    assert found.caller(HOST, cookie, "") is None
    # It is worth nothing where a token is required.
    assert sessions((b"a", ANN)).caller(HOST, cookie, proof) is None


def test_nodes_on_one_host_have_cookies_of_their_own() -> None:
    assert cookie_name("127.0.0.1:1") != cookie_name("127.0.0.1:2")
    assert cookie_name("node") == cookie_name("node:80")
    assert cookie_name("[::1]:9644") == "firn-session-9644"
