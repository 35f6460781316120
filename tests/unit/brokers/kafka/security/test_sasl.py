"""A connection's way through SASL, and the users it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.security import (
    AuthenticationFailed,
    Authenticator,
    SaslSession,
    UserNotFound,
    UserStore,
)
from firnmq.disk import KeyValueStore
from firnmq.errors import InvalidArgument


@pytest.fixture
def users(tmp_path: Path) -> Iterator[UserStore]:
    kv = KeyValueStore(tmp_path / "db")
    yield UserStore(kv)
    kv.close()


@pytest.fixture
def session(users: UserStore) -> SaslSession:
    users.put("ann", "secret")
    return SaslSession(Authenticator(users, ("PLAIN",)))


def test_users_are_added_changed_and_removed(users: UserStore) -> None:
    assert users.put("ann", "one")
    assert not users.put("ann", "two")
    assert users.put("bob", "x")
    assert users.names() == ["ann", "bob"]
    credential = users.get("ann")
    assert credential is not None
    assert credential.matches("two")
    users.remove("ann")
    assert (users.names(), users.get("ann")) == (["bob"], None)
    with pytest.raises(UserNotFound):
        users.remove("ann")


@pytest.mark.parametrize(
    ("name", "password"), [("", "x"), ("a" * 256, "x"), ("a\n", "x"), ("a", ""), ("a", "x" * 1025)]
)
def test_names_and_passwords_that_cannot_be_meant(
    users: UserStore, name: str, password: str
) -> None:
    with pytest.raises(InvalidArgument):
        users.put(name, password)
    assert users.names() == []


async def test_the_way_of_plain(session: SaslSession) -> None:
    assert session.choose("PLAIN", 1) is ErrorCode.NONE
    assert not session.takes_raw_tokens
    assert await session.respond(b"\0ann\0secret") == b""
    assert (session.is_done, session.user) == (True, "ann")


@pytest.mark.parametrize(
    "token", [b"\0ann\0no", b"bob\0ann\0secret", b"ann\0secret", b"\xff\0a\0b"]
)
async def test_a_failed_session_stays_failed(session: SaslSession, token: bytes) -> None:
    session.choose("PLAIN", 0)
    assert session.takes_raw_tokens
    with pytest.raises(AuthenticationFailed):
        await session.respond(token)
    assert not session.takes_raw_tokens
    with pytest.raises(AuthenticationFailed):
        await session.respond(b"\0ann\0secret")
    assert session.choose("PLAIN", 1) is ErrorCode.ILLEGAL_SASL_STATE
    assert not session.is_done


async def test_steps_out_of_order(session: SaslSession) -> None:
    with pytest.raises(AuthenticationFailed):
        await session.respond(b"\0ann\0secret")
    assert not session.is_done


def test_a_mechanism_that_is_not_offered(session: SaslSession) -> None:
    assert session.choose("SCRAM-SHA-256", 1) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert session.mechanisms == ("PLAIN",)
