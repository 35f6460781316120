"""The node's cache: it follows the store by revision and misses nothing."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.errors import Closed, Corruption, StorageFailed
from firnmq.meta import CacheBehind, Event, MetaCache, SqliteMetaStore
from firnmq.meta import cache as module
from firnmq.meta.api import Changes, Watch

_SOON_S = 30.0
"""Longer than any step takes: reached only if something is wrong."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetaStore]:
    store = SqliteMetaStore(tmp_path / "meta.db", changes_kept=50)
    yield store
    store.close()


def contents(cache: MetaCache) -> list[tuple[str, bytes]]:
    return [(entry.key, entry.value) for entry in cache.below("")]


def test_it_begins_with_what_is_there_and_follows(store: SqliteMetaStore) -> None:
    store.txn(puts={"a": b"1", "b/1": b"2"})
    cache = MetaCache(store)
    assert contents(cache) == [("a", b"1"), ("b/1", b"2")]
    revision = store.txn(puts={"a": b"3", "b/2": b"4"}, deletes=["b/1"])
    cache.wait_for_revision(revision, _SOON_S)
    assert cache.revision == revision
    assert contents(cache) == [("a", b"3"), ("b/2", b"4")]
    assert cache.get("b/1") is None
    assert cache.get("a") == store.get("a")
    assert [entry.key for entry in cache.below("b/")] == ["b/2"]
    cache.close()
    cache.close()


def test_listeners_hear_every_change_once_and_in_order(store: SqliteMetaStore) -> None:
    store.txn(puts={"t/a": b"0", "u": b""})
    cache = MetaCache(store)
    heard: list[tuple[str, bytes | None]] = []

    def listen(events: list[Event]) -> None:
        heard.extend((each.key, each.entry.value if each.entry else None) for each in events)

    cache.listen("t/", listen)
    assert heard == [("t/a", b"0")]
    heard.clear()
    for number in range(20):
        revision = store.txn(puts={"t/a": b"%d" % number, "u": b""})
    revision = store.txn(deletes=["t/a"])
    cache.wait_for_revision(revision, _SOON_S)
    assert heard == [*(("t/a", b"%d" % number) for number in range(20)), ("t/a", None)]
    cache.close()


def test_a_revision_that_does_not_come_is_a_time_out(store: SqliteMetaStore) -> None:
    cache = MetaCache(store)
    with pytest.raises(CacheBehind):
        cache.wait_for_revision(5, 0.01)
    cache.close()
    with pytest.raises(Closed):
        cache.wait_for_revision(5, _SOON_S)


def test_a_listener_that_cannot_read_a_record_stops_nobody(store: SqliteMetaStore) -> None:
    store.txn(puts={"a": b""})
    cache = MetaCache(store)
    heard: list[str] = []

    def choke(events: list[Event]) -> None:
        if events:
            raise Corruption("nonsense")

    with pytest.raises(Corruption):
        cache.listen("", choke)
    cache.listen("b", choke)
    cache.listen("b", lambda events: heard.extend(event.key for event in events))
    cache.wait_for_revision(store.txn(puts={"b": b""}), _SOON_S)
    assert heard == ["b"]
    cache.close()


class Stalled(SqliteMetaStore):
    """A store whose watches can be held back, and can be made to fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, changes_kept=50)
        self.go = threading.Event()
        self.go.set()
        self.failures = 0

    def watch(self, prefix: str, from_revision: int) -> Watch:  # type: ignore[override]
        if self.failures:
            self.failures -= 1
            raise StorageFailed("the meta store", OSError("no"))
        real, go = super().watch(prefix, from_revision), self.go

        class Held:
            def take(self, timeout_s: float) -> Changes | None:
                go.wait()
                return real.take(min(timeout_s, 0.01))

            def close(self) -> None:
                real.close()

        return Held()


def test_a_cache_that_fell_too_far_behind_starts_over_and_still_misses_nothing(
    tmp_path: Path,
) -> None:
    store = Stalled(tmp_path / "meta.db")
    store.txn(puts={"kept": b"", "gone": b"", "changed": b"1"})
    cache = MetaCache(store)
    state: dict[str, bytes] = {}

    def replay(events: list[Event]) -> None:
        for event in events:
            if event.entry is None:
                del state[event.key]
            else:
                state[event.key] = event.entry.value

    cache.listen("", replay)
    store.go.clear()
    # 1. More happens than the store keeps, while the cache does not look.
    store.txn(puts={"changed": b"2"}, deletes=["gone"])
    for number in range(600):
        revision = store.txn(puts={"n": b"%d" % number})
    store.compact(revision)
    # 2. It looks again, is told so, and takes a snapshot.
    store.go.set()
    cache.wait_for_revision(revision, _SOON_S)
    assert contents(cache) == [(e.key, e.value) for e in store.range("").entries]
    assert state == {"kept": b"", "changed": b"2", "n": b"599"}
    # 3. From there it goes on as before.
    cache.wait_for_revision(store.txn(puts={"later": b""}), _SOON_S)
    assert "later" in state
    cache.close()
    store.close()


def test_a_store_that_refuses_for_a_while_is_asked_again(tmp_path: Path) -> None:
    store = Stalled(tmp_path / "meta.db")
    store.failures = 2
    cache = MetaCache(store)
    cache.wait_for_revision(store.txn(puts={"a": b""}), _SOON_S)
    assert store.failures == 0
    cache.close()
    store.close()


def test_a_closed_store_ends_the_cache(store: SqliteMetaStore) -> None:
    store.txn(puts={"a": b"1"})
    cache = MetaCache(store)
    store.close()
    cache.close()
    assert contents(cache) == [("a", b"1")]


@pytest.mark.parametrize("sorts_above", [0, 3, 1_000])
def test_a_prefix_has_its_entries_in_order_whatever_changes(
    store: SqliteMetaStore, monkeypatch: pytest.MonkeyPatch, sorts_above: int
) -> None:
    monkeypatch.setattr(module, "_SORT_ABOVE", sorts_above)
    rng = random.Random(sorts_above)
    cache = MetaCache(store)
    for _ in range(60):
        puts = {f"{rng.choice('abc')}/{rng.randrange(30):02}": b"" for _ in range(5)}
        gone = {f"{rng.choice('abc')}/{rng.randrange(30):02}" for _ in range(5)} - puts.keys()
        revision = store.txn(puts=puts, deletes=sorted(gone))
    cache.wait_for_revision(revision, _SOON_S)
    for prefix in ("", "a", "a/", "b/1", "c/29", "d"):
        assert tuple(cache.below(prefix)) == store.range(prefix).entries
    cache.close()
