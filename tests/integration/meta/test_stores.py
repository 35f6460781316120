"""What every MetaStore does, with SQLite, with SQLite in two processes and with a real etcd.

Revisions of etcd do not begin at 0 and are shared by all who use it, so they are compared with each
other and never with a number.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.errors import Closed, InvalidArgument
from firnmq.meta import (
    Changes,
    Compacted,
    Compare,
    MetaCache,
    MetaStore,
    SessionLapsed,
    SqliteMetaStore,
    TxnConflict,
    register_node,
)
from firnmq.meta.etcd import EtcdMetaStore
from firnmq.testing import FakeClock
from firnmq.testing.etcd import EtcdCluster
from tests.integration.meta.elsewhere import OtherProcess, StoreOfTwo
from tests.integration.meta.etcds import etcd_program

AnyStore = SqliteMetaStore | StoreOfTwo | EtcdMetaStore
SOON_S = 10.0
_prefixes = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(etcd_program(), tmp_path_factory.mktemp("etcd"))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.stop()


@pytest.fixture(params=["sqlite", "two processes", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyStore]:
    store: AnyStore
    if request.param == "sqlite":
        store = SqliteMetaStore(tmp_path / "meta.db")
    elif request.param == "two processes":
        store = StoreOfTwo(tmp_path / "meta.db", request.getfixturevalue("other"))
    else:
        cluster: EtcdCluster = request.getfixturevalue("etcd")
        store = cluster.store(f"test{next(_prefixes)}/")
    yield store
    store.close()


def keys(store: MetaStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.range(prefix).entries]


def told(changes: Changes | None) -> list[tuple[str, bytes | None]]:
    assert changes is not None
    return [(event.key, event.entry.value if event.entry else None) for event in changes.events]


def test_every_change_takes_a_later_revision(store: MetaStore) -> None:
    first = store.txn(puts={"a": b"1", "b": b"2"})
    second = store.txn(puts={"a": b"3"})
    third = store.txn(deletes=["b"])
    assert first < second < third
    found = store.get("a")
    assert found is not None
    assert (found.value, found.create_revision, found.mod_revision) == (b"3", first, second)
    assert store.get("b") is None
    snapshot = store.range("")
    assert [entry.key for entry in snapshot.entries] == ["a"]
    assert snapshot.revision >= third


def test_what_changes_nothing_takes_no_revision(store: MetaStore) -> None:
    first = store.txn(puts={"a": b"1"})
    assert store.txn() == first
    assert store.txn(deletes=["not there"]) == first
    assert store.txn([Compare.absent("b")]) == first


def test_a_transaction_is_all_or_nothing(store: MetaStore) -> None:
    store.txn(puts={"a": b"1"})
    entry = store.get("a")
    assert entry is not None
    second = store.txn(puts={"a": b"2"})
    with pytest.raises(TxnConflict) as caught:
        store.txn([Compare.absent("b"), Compare.unchanged(entry)], {"b": b"x"}, ["a"])
    assert (caught.value.compare.key, caught.value.found) == ("a", second)
    assert keys(store) == ["a"]
    with pytest.raises(TxnConflict):
        store.txn([Compare.absent("a")], {"b": b"x"})
    with pytest.raises(TxnConflict):
        store.txn([Compare(key="b", revision=second)], {"b": b"x"})


def test_a_deleted_key_that_is_put_again_begins_a_new_life(store: MetaStore) -> None:
    store.txn(puts={"a": b"1"})
    first = store.get("a")
    assert first is not None
    store.txn(puts={"a": b"2"})
    store.txn([Compare.same_life(first)], {"b": b""})
    store.txn(deletes=["a"])
    store.txn(puts={"a": b"3"})
    with pytest.raises(TxnConflict):
        store.txn([Compare.same_life(first)], {"c": b""})


def test_a_range_has_the_keys_with_the_prefix_and_no_others(store: MetaStore) -> None:
    store.txn(puts=dict.fromkeys(("a", "a/", "a/1", "a/~", "a0", "b/1", "A/1"), b""))
    assert keys(store, "a/") == ["a/", "a/1", "a/~"]
    assert keys(store, "a") == ["a", "a/", "a/1", "a/~", "a0"]


def test_a_range_of_many_pages_is_of_one_revision(store: MetaStore) -> None:
    count = 2_500
    for start in range(0, count, 100):
        store.txn(puts={f"k{number:05}": b"v" for number in range(start, start + 100)})
    snapshot = store.range("k")
    assert [entry.key for entry in snapshot.entries] == [f"k{n:05}" for n in range(count)]


def test_what_etcd_would_refuse_every_store_refuses(store: MetaStore) -> None:
    most = store.txn_ops_max
    for arguments in (
        ([], {"a": b"x" * (1024 * 1024 + 1)}),
        ([], {"a": b""}, ["a"]),
        ([], {}, ["a", "a"]),
        ([], {"ä": b""}),
        ([], {f"{number}": b"" for number in range(most + 1)}),
        ([Compare.absent("a")] * (most + 1), {}),
    ):
        with pytest.raises(InvalidArgument):
            store.txn(*arguments)
    assert keys(store) == []


def test_a_watch_gives_every_change_from_its_revision_on(store: MetaStore) -> None:
    first = store.txn(puts={"a/1": b"1", "b/1": b""})
    store.txn(puts={"a/1": b"2"}, deletes=["b/1"])
    watch = store.watch("a/", first)
    seen: list[tuple[str, bytes | None]] = []
    while len(seen) < 2:
        seen += told(watch.take(SOON_S))
    last = store.txn(deletes=["a/1"])
    changes = watch.take(SOON_S)
    assert changes is not None
    assert changes.revision == last
    assert [*seen, *told(changes)] == [("a/1", b"1"), ("a/1", b"2"), ("a/1", None)]
    watch.close()
    with pytest.raises(Closed):
        watch.take(0.0)


def test_a_watch_without_changes_gives_nothing(store: MetaStore) -> None:
    revision = store.txn(puts={"a": b""})
    watch = store.watch("", revision + 1)
    assert watch.take(0.0) is None
    watch.close()


def test_a_waiting_watch_is_woken_by_its_end(store: MetaStore) -> None:
    watch = store.watch("", store.txn(puts={"a": b""}) + 1)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            watch.take(60.0)
        except Closed as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    watch.close()
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert len(ended) == 1


def test_changes_that_are_no_longer_kept_are_refused_by_name(
    store: AnyStore,
) -> None:
    first = store.txn(puts={"a": b"1"})
    last = max(store.txn(puts={"a": b"%d" % number}) for number in range(5))
    store.compact(last)
    with pytest.raises(Compacted):
        store.watch("", first).take(SOON_S)


def test_what_a_session_put_goes_when_it_is_closed(store: MetaStore) -> None:
    session = store.session(30)
    store.txn(puts={"live": b""}, session=session)
    session.keep_alive()
    watch = store.watch("", store.txn(puts={"a": b""}) + 1)
    session.close()
    assert told(watch.take(SOON_S)) == [("live", None)]
    session.close()
    with pytest.raises(SessionLapsed):
        session.keep_alive()
    with pytest.raises(SessionLapsed):
        store.txn(puts={"live": b""}, session=session)
    with pytest.raises(SessionLapsed):
        store.txn(deletes=["a"], session=session)
    watch.close()


def test_a_cache_follows_and_starts_over_when_it_has_to(
    store: AnyStore,
) -> None:
    store.txn(puts={"a": b"1"})
    cache = MetaCache(store)
    try:
        cache.wait_for_revision(store.txn(puts={"b": b"2"}, deletes=["a"]), SOON_S)
        assert [entry.key for entry in cache.below("")] == ["b"]
    finally:
        cache.close()


def test_nodes_get_later_and_later_incarnations(store: MetaStore) -> None:
    first = register_node(store, 1, FakeClock())
    again = register_node(store, 1, FakeClock(), store.session(30))
    assert (first.incarnation, again.incarnation) == (1, 2)
    with pytest.raises(TxnConflict):
        store.txn([first.guard], {"a": b""})
    store.txn([again.guard], {"a": b""})


def test_writers_in_many_threads_share_one_sequence(store: MetaStore) -> None:
    store.txn(puts={"count": b"0"})

    def add() -> None:
        done = 0
        while done < 10:
            entry = store.get("count")
            assert entry is not None
            try:
                store.txn([Compare.unchanged(entry)], {"count": b"%d" % (int(entry.value) + 1)})
                done += 1
            except TxnConflict:
                continue

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = store.get("count")
    assert entry is not None
    assert entry.value == b"40"
