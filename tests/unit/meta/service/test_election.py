"""Who is the controller: the machine's steps, and two candidates on one store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.meta import MetaCache, SqliteMetaStore, TxnConflict
from firnmq.meta.service.election import (
    CONTROLLER_KEY,
    Campaign,
    Candidate,
    Election,
    KeepAlive,
    Kept,
    Lost,
    NotWon,
    Role,
    StepDown,
    Tick,
    Won,
)
from firnmq.testing import FakeClock

_TTL_MS = 4_000
_SOON_S = 60.0


def elected(now_ms: int = 0) -> Election:
    election = Election(_TTL_MS)
    assert election.handle(Tick(is_taken=False), now_ms) == [Campaign()]
    assert election.handle(Won(7, now_ms), now_ms) == []
    return election


def test_it_campaigns_once_and_only_while_there_is_no_controller() -> None:
    election = Election(_TTL_MS)
    assert election.handle(Tick(is_taken=True), 0) == []
    assert election.handle(Tick(is_taken=False), 1) == [Campaign()]
    assert election.handle(Tick(is_taken=False), 2) == [], "the answer is on its way"
    assert election.handle(NotWon(), 3) == []
    assert election.handle(Tick(is_taken=False), 4) == [Campaign()]


def test_a_leader_keeps_its_session_alive() -> None:
    election = elected()
    assert (election.role, election.revision, election.is_leading(0)) == (Role.LEADING, 7, True)
    assert election.handle(Tick(is_taken=True), 999) == []
    assert election.handle(Tick(is_taken=True), 1_000) == [KeepAlive()]
    assert election.handle(Tick(is_taken=True), 1_001) == [], "one call at a time"
    election.handle(Kept(1_000), 1_500)
    assert election.is_leading(3_999)
    assert not election.is_leading(4_000)


def test_it_stops_by_itself_before_its_session_can_have_lapsed() -> None:
    election = elected()
    assert not election.is_leading(3_000)
    assert election.handle(Tick(is_taken=True), 3_000) == [StepDown()]
    assert election.handle(Kept(1_000), 3_001) == [], "too late"
    assert election.role is Role.FOLLOWING
    assert election.revision == 0


def test_an_answer_that_took_long_counts_from_when_it_was_asked_for() -> None:
    election = Election(_TTL_MS)
    election.handle(Tick(is_taken=False), 0)
    election.handle(Won(7, 0), 2_900)
    assert election.is_leading(2_999)
    assert not election.is_leading(3_000)


def test_one_that_was_replaced_steps_down_once() -> None:
    election = elected()
    assert election.handle(Lost(), 5) == [StepDown()]
    assert election.handle(Lost(), 6) == []
    assert election.handle(Won(8, 5), 7) == [], "an answer to an election that is over"
    assert election.role is Role.FOLLOWING


# With a store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetaStore]:
    store = SqliteMetaStore(tmp_path / "meta.db")
    yield store
    store.close()


@pytest.fixture
def cache(store: SqliteMetaStore) -> Iterator[MetaCache]:
    cache = MetaCache(store)
    yield cache
    cache.close()


def candidate(store: SqliteMetaStore, cache: MetaCache, name: str) -> Candidate:
    return Candidate(
        store,
        name,
        is_taken=lambda: cache.get(CONTROLLER_KEY) is not None,
        clock=FakeClock(),
        ttl_s=1_000,
    )


def wait_for_controller(cache: MetaCache, name: str | None) -> None:
    for _ in range(1_000):
        seen = cache.revision
        entry = cache.get(CONTROLLER_KEY)
        if (None if entry is None else entry.value.decode()) == name:
            return
        cache.wait_for_change(seen, _SOON_S)
    raise AssertionError(f"{name} is not the controller")


def test_one_of_two_is_elected_and_the_other_follows_when_it_stops(
    store: SqliteMetaStore, cache: MetaCache
) -> None:
    first, second = candidate(store, cache, "first"), candidate(store, cache, "second")
    first.start()
    wait_for_controller(cache, "first")
    second.start()
    guard = None
    while guard is None:  # The key is there before the answer.
        guard = first.guard()
    assert second.guard() is None
    store.txn([guard], {"a": b"1"})
    first.stop()
    wait_for_controller(cache, "second")
    assert first.guard() is None
    # What the first one was permitted, it is no more.
    with pytest.raises(TxnConflict):
        store.txn([guard], {"a": b"2"})
    second.stop()
    wait_for_controller(cache, None)
