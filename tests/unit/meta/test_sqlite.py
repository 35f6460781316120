"""SqliteMetaStore: revisions, compares, watches, sessions, and what it refuses."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.errors import Closed, Corruption, DiskFull, InvalidArgument, OtherFormat, StorageFailed
from firnmq.meta import (
    Changes,
    Compacted,
    Compare,
    SessionLapsed,
    SqliteMetaStore,
    TxnConflict,
)
from firnmq.meta.sqlite import store as module
from firnmq.testing import FakeClock
from tests.conformance.lost_answers import lost_answers

_NOW = 0.0
"""A watch is asked for what is there, and does not wait."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=[False, True], ids=["exclusive", "shared"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> Iterator[SqliteMetaStore]:
    store = SqliteMetaStore(tmp_path / "meta.db", clock=clock, is_shared=request.param)
    yield store
    store.close()


def keys(store: SqliteMetaStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.range(prefix).entries]


def names(changes: Changes | None) -> list[tuple[int, str, bytes | None]]:
    assert changes is not None
    return [
        (event.revision, event.key, event.entry.value if event.entry else None)
        for event in changes.events
    ]


def test_every_change_takes_the_next_revision(store: SqliteMetaStore) -> None:
    assert store.range("").revision == 0
    assert store.txn(puts={"a": b"1", "b": b"2"}) == 1
    assert store.txn(puts={"a": b"3"}) == 2
    assert store.txn(deletes=["b"]) == 3
    found = store.get("a")
    assert found is not None
    assert (found.value, found.create_revision, found.mod_revision) == (b"3", 1, 2)
    assert store.get("b") is None
    assert (keys(store), store.range("").revision) == (["a"], 3)


def test_what_changes_nothing_takes_no_revision(store: SqliteMetaStore) -> None:
    store.txn(puts={"a": b"1"})
    assert store.txn() == 1
    assert store.txn(deletes=["not there"]) == 1
    assert store.txn([Compare.absent("b")]) == 1


def test_a_key_made_anew_begins_a_new_life(store: SqliteMetaStore) -> None:
    store.txn(puts={"a": b"1"})
    first = store.get("a")
    assert first is not None
    store.txn(puts={"a": b"2"})
    assert store.txn([Compare.same_life(first)], {"b": b""}) == 3
    store.txn(deletes=["a"])
    store.txn(puts={"a": b"3"})
    with pytest.raises(TxnConflict):
        store.txn([Compare.same_life(first)], {"c": b""})
    second = store.get("a")
    assert second is not None
    assert second.create_revision == second.mod_revision == 5


def test_a_transaction_is_all_or_nothing(store: SqliteMetaStore) -> None:
    store.txn(puts={"a": b"1"})
    entry = store.get("a")
    assert entry is not None
    store.txn(puts={"a": b"2"})
    with pytest.raises(TxnConflict) as caught:
        store.txn([Compare.absent("b"), Compare.unchanged(entry)], {"b": b"x"}, ["a"])
    assert (caught.value.compare.key, caught.value.found) == ("a", 2)
    assert (keys(store), store.range("").revision) == (["a"], 2)
    with pytest.raises(TxnConflict):
        store.txn([Compare.absent("a")], {"b": b"x"})
    with pytest.raises(TxnConflict):
        store.txn([Compare(key="b", revision=1)], {"b": b"x"})


def test_a_range_has_the_keys_with_the_prefix_and_no_others(store: SqliteMetaStore) -> None:
    store.txn(puts=dict.fromkeys(("a", "a/", "a/1", "a/~", "a0", "b/1", "A/1"), b""))
    assert keys(store, "a/") == ["a/", "a/1", "a/~"]
    assert keys(store, "a") == ["a", "a/", "a/1", "a/~", "a0"]


@pytest.mark.parametrize("key", ["", "ä", "a\n", "a\0", "x" * 1025])
def test_keys_that_would_not_sort_alike_everywhere_are_refused(
    store: SqliteMetaStore, key: str
) -> None:
    with pytest.raises(InvalidArgument):
        store.txn(puts={key: b""})


def test_what_etcd_would_refuse_is_refused(store: SqliteMetaStore) -> None:
    for arguments in (
        ([], {"a": b"x" * (1024 * 1024 + 1)}),
        ([], {"a": b""}, ["a"]),
        ([], {}, ["a", "a"]),
        ([], {f"{number}": b"" for number in range(store.txn_ops_max + 1)}),
        ([Compare.absent("a")] * (store.txn_ops_max + 1), {}),
    ):
        with pytest.raises(InvalidArgument):
            store.txn(*arguments)  # type: ignore[arg-type]
    assert store.range("").revision == 0


def test_all_of_it_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetaStore(path)
    for number in range(50):
        store.txn(puts={f"k{number % 7}": b"%d" % number}, deletes=[f"k{(number + 1) % 7}"])
    before, history = store.range(""), store.watch("", 1).take(_NOW)
    store.close()
    again = SqliteMetaStore(path)
    assert (again.range(""), again.watch("", 1).take(_NOW)) == (before, history)
    assert again.txn(puts={"new": b""}) == before.revision + 1
    again.close()


# Watching -------------------------------------------------------------------------------------


def test_a_watch_gives_every_change_from_its_revision_on(store: SqliteMetaStore) -> None:
    store.txn(puts={"a/1": b"1"})
    store.txn(puts={"a/1": b"2", "b": b""})
    watch = store.watch("a/", 2)
    store.txn(deletes=["a/1"])
    taken = watch.take(_NOW)
    assert names(taken) == [(2, "a/1", b"2"), (3, "a/1", None)]
    assert watch.take(_NOW) is None
    store.txn(puts={"b": b"other"})
    taken = watch.take(_NOW)
    assert taken == Changes(revision=4, events=()), "the watcher learns how far it has seen"


def test_a_watch_from_the_future_waits_for_it(store: SqliteMetaStore) -> None:
    watch = store.watch("", 3)
    store.txn(puts={"a": b"1"})
    store.txn(puts={"a": b"2"})
    assert watch.take(_NOW) is None
    store.txn(puts={"a": b"3"})
    assert names(watch.take(_NOW)) == [(3, "a", b"3")]


def test_a_waiting_watch_is_woken_by_a_commit_and_by_its_end(store: SqliteMetaStore) -> None:
    watch = store.watch("", 1)
    seen: list[object] = []

    def follow() -> None:
        try:
            while True:
                seen.append(names(watch.take(60)))
        except Closed:
            seen.append("closed")

    thread = threading.Thread(target=follow)
    thread.start()
    store.txn(puts={"a": b"1"})
    watch.close()
    thread.join(30)
    assert not thread.is_alive()
    assert seen[-1] == "closed"
    other = store.watch("", 1)
    store.close()
    with pytest.raises(Closed):
        other.take(60)


def test_a_large_history_comes_in_parts_and_whole(
    store: SqliteMetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TAKE_REVISIONS", 3)
    for number in range(8):
        store.txn(puts={"a": b"%d" % number, f"b{number}": b""})
    watch = store.watch("a", 1)
    taken = []
    while (changes := watch.take(_NOW)) is not None:
        assert len(changes.events) <= 3
        taken += [event.entry.value for event in changes.events if event.entry]
    assert taken == [b"%d" % number for number in range(8)]


def test_changes_that_are_no_longer_kept_are_refused_by_name(store: SqliteMetaStore) -> None:
    watch = store.watch("", 1)
    for number in range(10):
        store.txn(puts={"a": b"%d" % number})
    store.compact(6)
    for ask in (lambda: watch.take(_NOW), lambda: store.watch("", 5)):
        with pytest.raises(Compacted) as caught:
            ask()
        assert caught.value.oldest == 6
    assert len(names(store.watch("", 6).take(_NOW))) == 5
    store.compact(2)
    assert store.watch("", 6).take(_NOW) is not None, "compacting never goes back"
    store.compact(1_000)
    assert store.watch("", 11).take(_NOW) is None
    store.txn(puts={"a": b""})
    assert store.range("").revision == 11


def test_old_changes_go_by_themselves(tmp_path: Path) -> None:
    store = SqliteMetaStore(tmp_path / "meta.db", changes_kept=100)
    for _ in range(1200):
        store.txn(puts={"a": b"x"})
    with pytest.raises(Compacted):
        store.watch("", 800)
    watch = store.watch("", 1101)
    assert len(names(watch.take(_NOW))) == 100
    store.close()
    rows = sqlite3.connect(tmp_path / "meta.db").execute("SELECT COUNT(*) FROM changes")
    assert rows.fetchone()[0] <= 100 + 500


# Sessions -------------------------------------------------------------------------------------


def test_what_a_session_put_goes_when_it_lapses(store: SqliteMetaStore, clock: FakeClock) -> None:
    session = store.session(10)
    store.txn(puts={"mine/1": b"", "mine/2": b""}, session=session)
    store.txn(puts={"other": b""})
    watch = store.watch("", 3)
    clock.advance(9_999)
    session.keep_alive()
    clock.advance(9_999)
    store.expire_sessions()
    assert keys(store) == ["mine/1", "mine/2", "other"]
    clock.advance(1)
    store.expire_sessions()
    assert keys(store) == ["other"]
    assert names(watch.take(_NOW)) == [(3, "mine/1", None), (3, "mine/2", None)]
    with pytest.raises(SessionLapsed):
        session.keep_alive()
    with pytest.raises(SessionLapsed):
        store.txn(puts={"mine/3": b""}, session=session)
    session.close()


def test_setting_the_clock_back_makes_no_session_last_longer(
    store: SqliteMetaStore, clock: FakeClock
) -> None:
    session = store.session(10)
    store.txn(puts={"mine": b""}, session=session)
    clock.set_back(3_600_000)
    clock.advance(9_999)
    store.expire_sessions()
    assert keys(store) == ["mine"]
    clock.advance(1)
    store.expire_sessions()
    assert keys(store) == []


def test_a_session_from_before_the_machine_started_has_lapsed(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    clock.advance(3_600_000)
    before = SqliteMetaStore(tmp_path / "meta.db", clock=clock, is_shared=True)
    before.txn(puts={"mine": b""}, session=before.session(10))
    before.close()
    other = SqliteMetaStore(tmp_path / "meta.db", clock=FakeClock(), is_shared=True)
    other.expire_sessions()
    assert keys(other) == []
    other.close()


def test_a_lapsed_session_is_fenced_even_if_nobody_kept_time(
    store: SqliteMetaStore, clock: FakeClock
) -> None:
    session = store.session(10)
    store.txn(puts={"leader": b"1"}, session=session)
    clock.advance(10_000)
    with pytest.raises(SessionLapsed):
        store.txn(puts={"leader": b"2"}, session=session)
    assert store.txn([Compare.absent("leader")], {"leader": b"new"}) == 3


def test_a_closed_session_takes_its_keys_along(store: SqliteMetaStore) -> None:
    session, other = store.session(10), store.session(10)
    store.txn(puts={"a": b"", "b": b""}, session=session)
    store.txn(puts={"c": b""}, session=other)
    store.txn(puts={"b": b""})
    session.close()
    session.close()
    assert keys(store) == ["b", "c"], "what was put again without it belongs to no session"
    with pytest.raises(SessionLapsed):
        session.keep_alive()
    other.keep_alive()


def test_a_key_belongs_to_who_put_it_last(store: SqliteMetaStore) -> None:
    first, second = store.session(10), store.session(10)
    store.txn(puts={"a": b"1"}, session=first)
    store.txn(puts={"a": b"2"}, session=second)
    first.close()
    assert keys(store) == ["a"]
    second.close()
    assert keys(store) == []


def test_sessions_end_with_the_process_that_had_the_file(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetaStore(path, clock=clock)
    store.txn(puts={"a": b""}, session=store.session(1_000_000))
    store.txn(puts={"b": b""})
    store.close()
    again = SqliteMetaStore(path, clock=clock)
    assert keys(again) == ["b"]
    again.close()


def test_sessions_of_a_shared_store_outlive_a_process(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetaStore(path, clock=clock, is_shared=True)
    store.txn(puts={"a": b""}, session=store.session(100))
    store.close()
    again = SqliteMetaStore(path, clock=clock, is_shared=True)
    assert keys(again) == ["a"]
    clock.advance(100_000)
    again.expire_sessions()
    assert keys(again) == []
    again.close()


@pytest.mark.parametrize("ttl_s", [0, -1, 0.0001])
def test_a_session_needs_time_to_live(store: SqliteMetaStore, ttl_s: float) -> None:
    with pytest.raises(InvalidArgument):
        store.session(ttl_s)


# What goes wrong ------------------------------------------------------------------------------


def test_a_file_that_is_no_store_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(Corruption):
        SqliteMetaStore(path)


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    SqliteMetaStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE counters SET value = 2 WHERE name = 'format'")
    db.close()
    with pytest.raises(OtherFormat, match="format 2"):
        SqliteMetaStore(path)


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE songs (title TEXT)",
        "CREATE TABLE counters (hits INTEGER)",
        "CREATE TABLE counters (name TEXT, value TEXT)",
        "CREATE TABLE counters AS SELECT 'format' AS name, 'x' AS value",
    ],
)
def test_a_database_of_another_program_is_refused_and_left_alone(
    tmp_path: Path, schema: str
) -> None:
    path = tmp_path / "meta.db"
    db = sqlite3.connect(path)
    db.executescript(schema)
    db.close()
    before = path.read_bytes()
    with pytest.raises(OtherFormat, match="another program"):
        SqliteMetaStore(path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_a_storage_failure(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        SqliteMetaStore(tmp_path / "no such folder" / "meta.db")


def fill(store: SqliteMetaStore) -> None:
    for number in range(100):
        store.txn(puts={f"b{number}": os.urandom(10_000)})


def test_after_a_failed_write_the_store_goes_on(store: SqliteMetaStore) -> None:
    """A page limit stands in for a full disk: SQLite fails in the same way."""
    store.txn(puts={"a": b"1"})
    watch = store.watch("", 2)
    store._write_db.execute("PRAGMA max_page_count = 20")
    with pytest.raises(DiskFull):
        fill(store)
    # The connection is reopened, without the limit; what was refused is not there.
    stored = [key for key in keys(store) if key != "a"]
    assert store.txn(puts={"c": b"1"}) == len(stored) + 2
    taken = watch.take(_NOW)
    assert [key for _, key, _ in names(taken)] == [*(f"b{n}" for n in range(len(stored))), "c"]


def test_a_commit_that_happened_is_answered_although_it_was_reported_as_failed(
    store: SqliteMetaStore,
) -> None:
    store.txn(puts={"a": b"1"})
    watch = store.watch("", 2)
    with lost_answers(store, happens=True) as lost:
        assert store.txn([Compare(key="a", revision=1)], {"a": b"2"}) == 2
        assert store.txn(deletes=["a"]) == 3
    assert lost.lost_count == 2
    assert names(watch.take(_NOW)) == [(2, "a", b"2"), (3, "a", None)]
    assert store.txn(puts={"b": b"1"}) == 4


def test_a_commit_that_failed_has_changed_nothing(store: SqliteMetaStore) -> None:
    with lost_answers(store, happens=False), pytest.raises(StorageFailed) as caught:
        store.txn(puts={"a": b"1"})
    assert not caught.value.is_outcome_unknown
    assert (keys(store), store.txn(puts={"b": b"1"})) == ([], 1)


@pytest.mark.parametrize("happens", [True, False])
def test_the_outcome_is_unknown_while_the_store_cannot_be_read(
    store: SqliteMetaStore, happens: bool
) -> None:
    with lost_answers(store, happens=happens, is_blind=True):
        with pytest.raises(StorageFailed) as caught:
            store.txn(puts={"a": b"1"})
        with pytest.raises(StorageFailed):
            store.get("a")
    assert caught.value.is_outcome_unknown
    assert keys(store) == (["a"] if happens else [])


def test_a_closed_store_says_so(store: SqliteMetaStore) -> None:
    session = store.session(5)
    store.close()
    store.close()
    for ask in (
        lambda: store.get("a"),
        lambda: store.range(""),
        lambda: store.txn(puts={"a": b""}),
        lambda: store.watch("", 1),
        lambda: store.session(1),
        session.keep_alive,
    ):
        with pytest.raises(Closed):
            ask()


def test_writers_in_many_threads_share_one_sequence(store: SqliteMetaStore) -> None:
    revisions: list[int] = []

    def count_up(_: int) -> None:
        for _ in range(25):
            while True:
                entry = store.get("n")
                compare = Compare.absent("n") if entry is None else Compare.unchanged(entry)
                value = b"1" if entry is None else b"%d" % (int(entry.value) + 1)
                try:
                    revisions.append(store.txn([compare], {"n": value}))
                    break
                except TxnConflict:
                    continue

    threads = [threading.Thread(target=count_up, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get("n")
    assert found is not None
    assert found.value == b"100"
    assert sorted(revisions) == list(range(1, 101))
