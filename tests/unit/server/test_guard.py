"""Which HTTP requests are let in: hosts, origins, tokens."""

from __future__ import annotations

import pytest

from firnmq.config import AdminConfig, is_loopback
from firnmq.server.admin.errors import Refused
from firnmq.server.admin.http.guard import AccessGuard


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *("127.evil.example", "127.0.0.1.evil.example", "127.", "127.1", "127.0.0.1@evil.example"),
        *("localhost.evil.example", "evil.localhost", "", "0.0.0.0", "::", "10.0.0.1", "::2"),
    ],
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def refusal(guard: AccessGuard, method: str = "GET", **headers: str) -> int | None:
    """The status that the request is refused with, None if it is let in."""
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return refusal_of(guard, named, method)


def refusal_of(
    guard: AccessGuard, headers: list[tuple[str, str]], method: str = "GET", version: str = "1.1"
) -> int | None:
    try:
        guard.check(method, headers, http_version=version, needs_token=True)
    except Refused as error:
        return error.status
    return None


LOCAL = AccessGuard(AdminConfig(), None)
WIDE = AccessGuard(AdminConfig(host="0.0.0.0", host_names=("queue.example.org",)), None)
WIDE_WITH_TOKEN = AccessGuard(AdminConfig(host="0.0.0.0"), b"secret")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9644", "localhost", "localhost:1", "[::1]:9644", "127.0.0.2"]
)
def test_a_local_listener_answers_to_local_hosts(host: str) -> None:
    assert refusal(LOCAL, host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        *("127.evil.example", "127.0.0.1.evil.example:9644", "evil.example", "10.0.0.1"),
        *("127.0.0.1/@evil.example", "a@127.0.0.1", "[::1", "[]", ":9644", "127.0.0.1 evil"),
    ],
)
def test_a_local_listener_is_called_nothing_else(host: str) -> None:
    assert refusal(LOCAL, host=host) == 421


def test_a_wide_listener_without_token_answers_to_addresses_and_its_own_names() -> None:
    for host in ("10.0.0.1:9644", "[fe80::1]:9644", "localhost", "Queue.example.org:9644"):
        assert refusal(WIDE, host=host) is None
    assert refusal(WIDE, host="evil.example:9644") == 421


def test_a_page_does_not_know_the_token_so_any_name_will_do() -> None:
    known = {"host": "any.example", "authorization": "Bearer secret"}
    assert refusal(WIDE_WITH_TOKEN, **known) is None
    assert refusal(WIDE_WITH_TOKEN, host="any.example") == 401
    assert refusal(WIDE_WITH_TOKEN, host="any.example", authorization="Bearer wrong") == 401


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:80", "https://127.0.0.1:9644", ""]
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_a_foreign_origin_is_refused(method: str, origin: str) -> None:
    assert refusal(LOCAL, method, host="127.0.0.1:9644", origin=origin) == 403


@pytest.mark.parametrize("origins", [("own", "foreign"), ("foreign", "own")])
def test_every_origin_is_judged(origins: tuple[str, ...]) -> None:
    named = {"own": "http://127.0.0.1", "foreign": "http://evil.example"}
    headers = [("host", "127.0.0.1"), *(("origin", named[each]) for each in origins)]
    assert refusal_of(LOCAL, headers) == 403


def test_a_request_has_one_host() -> None:
    assert refusal_of(LOCAL, [("host", "127.0.0.1"), ("host", "127.0.0.1")]) == 400
    assert refusal_of(LOCAL, [("host", "")]) == 400
    assert refusal_of(LOCAL, []) == 400


def test_without_a_host_there_is_no_own_origin() -> None:
    assert refusal_of(LOCAL, [], version="1.0") is None
    assert refusal_of(LOCAL, [("origin", "http://")], version="1.0") == 403
    assert refusal_of(LOCAL, [("host", ""), ("origin", "http://")], version="1.0") == 403


def test_the_own_origin_is_none_of_a_stranger() -> None:
    assert refusal(LOCAL, host="127.0.0.1:9644", origin="http://127.0.0.1:9644") is None


def test_changes_are_json() -> None:
    host = "127.0.0.1"
    assert refusal(LOCAL, "POST", host=host, content_type="text/plain") == 415
    assert refusal(LOCAL, "PUT", host=host) == 415
    known = "application/json; charset=utf-8"
    assert refusal(LOCAL, "PATCH", host=host, content_type=known) is None
    assert refusal(LOCAL, "DELETE", host=host) is None
