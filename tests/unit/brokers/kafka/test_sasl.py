"""A connection's way through SASL, and the users it is judged by."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from firnmq.brokers.kafka.connections.sasl import SaslSession
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.security import (
    MECHANISMS,
    AuthenticationFailed,
    Authenticator,
    ScramCredential,
    TooManyFailures,
    UserNotFound,
    UserStore,
)
from firnmq.brokers.security.credentials import Digest
from firnmq.brokers.security.login_throttle import LoginThrottle
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import InvalidArgument

DIGESTS: tuple[Digest, ...] = ("sha256", "sha512")


class Clock:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


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


def guarded(users: UserStore, clock: Clock) -> Authenticator:
    return Authenticator(users, ("PLAIN",), now_s=lambda: clock.now_s, sleep=clock.sleep)


async def log_in(authenticator: Authenticator, password: str, address: str = "10.0.0.1") -> bool:
    session = SaslSession(authenticator, address)
    session.choose("PLAIN", 1)
    with contextlib.suppress(AuthenticationFailed):
        await session.respond(f"\0ann\0{password}".encode())
    return session.is_done


async def test_failed_logins_make_the_next_one_wait_longer_and_longer(users: UserStore) -> None:
    users.put("ann", "secret")
    clock = Clock()
    authenticator = guarded(users, clock)
    for _ in range(10):
        assert not await log_in(authenticator, "guess")
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.25, 1.25, 1.25, 1.25, 1.25])
    clock.slept.clear()
    assert not await log_in(authenticator, "guess", "10.0.0.2")
    assert not clock.slept, "another address has failed for the first time"
    assert await log_in(authenticator, "secret")
    assert clock.slept == [1.25], "the right password waits as well"
    assert await log_in(authenticator, "secret")
    assert clock.slept == [1.25], "and ends it"


async def test_logins_that_would_wait_too_long_are_cut_off(users: UserStore) -> None:
    """Guessing on many connections at once is no faster than on one."""
    users.put("ann", "secret")
    clock = Clock()
    released = asyncio.Event()

    async def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        await released.wait()

    authenticator = Authenticator(users, ("PLAIN",), now_s=lambda: clock.now_s, sleep=sleep)
    assert not await log_in(authenticator, "guess")
    guesses = [asyncio.create_task(log_in(authenticator, "guess")) for _ in range(200)]
    await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)  # By then each has begun.
    assert len(clock.slept) + sum(each.done() for each in guesses) == 200
    assert len(clock.slept) <= 51
    assert clock.slept[-1] <= 5.0
    released.set()
    results = await asyncio.gather(*guesses, return_exceptions=True)
    assert sum(isinstance(each, TooManyFailures) for each in results) >= 149


async def test_a_user_who_is_removed_while_logging_in_is_not_let_in(users: UserStore) -> None:
    users.put("ann", "secret")

    async def remove(_: float) -> None:
        users.remove("ann")

    authenticator = Authenticator(users, ("PLAIN",), now_s=lambda: 0.0, sleep=remove)
    assert not await log_in(authenticator, "wrong")
    assert not await log_in(authenticator, "secret"), "removed while the login waited"
    assert users.names() == []


def test_failures_are_forgotten_after_a_while_and_bounded() -> None:
    throttle = LoginThrottle()
    for number in range(20_000):
        throttle.failed("10.0.0.1", f"user{number}", 0.0)
    assert throttle.reserve("10.0.0.1", "user0", 0.0) == 0.0, "dropped for newer ones"
    assert throttle.reserve("10.0.0.1", "user19999", 0.0) == pytest.approx(0.1)
    assert throttle.reserve("10.0.0.1", "user19998", 901.0) == 0.0


def test_salts_of_unknown_users_survive_a_restart(tmp_path: Path) -> None:
    salts = []
    for _ in range(2):
        kv = KeyValueStore(tmp_path / "db")
        authenticator = Authenticator(UserStore(kv), ("SCRAM-SHA-256",))
        salts.append([authenticator.find("nobody", digest).salt for digest in DIGESTS])
        kv.close()
    assert salts[0] == salts[1]
    assert salts[0][0] != salts[0][1]


def test_a_user_of_an_earlier_version_has_no_key_for_sha_512(tmp_path: Path) -> None:
    """The password still works where it did, and the log says what to do about the rest."""
    kv = KeyValueStore(tmp_path / "db")
    old = ScramCredential.of_password("secret")
    entry = {name: getattr(old, name) for name in ("salt", "iterations", "stored_key")}
    with kv.batch() as batch:
        record = msgspec.msgpack.encode({**entry, "server_key": old.server_key})
        batch.put(Family.STATE, b"uann", record)
    users = UserStore(kv)
    authenticator = Authenticator(users, MECHANISMS)
    assert users.get("ann") == old
    assert authenticator.lacks("ann", "sha512")
    assert not authenticator.lacks("nobody", "sha512")
    users.put("ann", "secret")
    assert not authenticator.lacks("ann", "sha512")
    kv.close()
