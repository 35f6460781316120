"""EtcdMetaStore with three real members that are killed, paused and started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from firnmq.errors import StorageFailed, TimedOut
from firnmq.meta import Compare, MetaCache, SessionLapsed, TxnConflict
from firnmq.meta.etcd import EtcdMetaStore
from firnmq.testing.etcd import EtcdCluster
from tests.integration.meta.etcds import etcd_program

SOON_S = 20.0
TRIES = 40
Told = TypeVar("Told")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(etcd_program(), tmp_path_factory.mktemp("etcd"), 3)
    yield cluster
    cluster.stop()


@pytest.fixture
def store(etcd: EtcdCluster, tmp_path: Path) -> Iterator[EtcdMetaStore]:
    store = etcd.store(f"{tmp_path.name}/", call_s=2.0)
    yield store
    store.close()


def until_known(act: Callable[[], Told]) -> Told:
    """What a caller does after an unknown outcome or a time-out: it tries again."""
    for _ in range(TRIES):
        try:
            return act()
        except (StorageFailed, TimedOut):
            continue
    raise AssertionError(f"no answer in {TRIES} tries")


def add(store: EtcdMetaStore, key: str) -> int:
    """Puts a key that must not be there; finding it means that an earlier try succeeded."""

    def put() -> int:
        try:
            return store.txn([Compare.absent(key)], {key: b"here"})
        except TxnConflict as conflict:
            return conflict.found

    return until_known(put)


@pytest.mark.slow
def test_any_member_may_die_and_nothing_is_lost_or_missed(
    etcd: EtcdCluster, store: EtcdMetaStore
) -> None:
    cache = MetaCache(store)
    seen: list[str] = []
    cache.listen("k", lambda events: seen.extend(event.key for event in events))
    try:
        for member in range(3):
            add(store, f"k{member}-before")
            etcd.kill(member)
            revision = add(store, f"k{member}-during")
            cache.wait_for_revision(revision, SOON_S)
            etcd.start(member)
            etcd.wait_ready()
        wanted = [f"k{member}-{when}" for member in range(3) for when in ("before", "during")]
        assert [entry.key for entry in until_known(lambda: store.range("k")).entries] == sorted(
            wanted
        )
        assert sorted(seen) == sorted(wanted), "each change is told once"
    finally:
        cache.close()


@pytest.mark.slow
def test_without_a_majority_calls_end_in_time_and_say_so(
    etcd: EtcdCluster, store: EtcdMetaStore
) -> None:
    add(store, "a")
    for member in (0, 1):
        etcd.kill(member)
    try:
        with pytest.raises((TimedOut, StorageFailed)):
            store.txn(puts={"a": b"2"})
        with pytest.raises(TimedOut, match="no member of etcd at 127"):
            store.get("a")
    finally:
        for member in (0, 1):
            etcd.start(member)
        etcd.wait_ready()
    assert until_known(lambda: store.get("a")) is not None


@pytest.mark.slow
def test_a_member_that_stands_still_is_left_for_another(
    etcd: EtcdCluster, store: EtcdMetaStore
) -> None:
    for member in range(3):
        add(store, f"p{member}")
        etcd.pause(member)
        try:
            add(store, f"p{member}-paused")
        finally:
            etcd.resume(member)
    assert len(until_known(lambda: store.range("p")).entries) == 6


@pytest.mark.slow
def test_a_session_that_is_not_kept_alive_lapses(store: EtcdMetaStore) -> None:
    session = store.session(1)
    revision = store.txn(puts={"live": b""}, session=session)
    watch = store.watch("", revision + 1)
    changes = watch.take(SOON_S)
    while changes is not None and not changes.events:
        changes = watch.take(SOON_S)
    assert changes is not None
    assert [(event.key, event.entry) for event in changes.events] == [("live", None)]
    with pytest.raises(SessionLapsed):
        session.keep_alive()
    watch.close()
