"""Several stores on one SQLite file: who may open it, and how watches learn of other stores."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from firnmq.errors import TimedOut
from firnmq.meta import SqliteMetaStore
from firnmq.meta.sqlite import store as module
from firnmq.meta.sqlite.sharing import Hints

_SOON_S = 60.0


def test_a_watch_is_woken_by_another_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S", _SOON_S)  # It does not look by itself.
    writer, reader = (SqliteMetaStore(tmp_path / "meta.db", is_shared=True) for _ in range(2))
    watch = reader.watch("", 1)
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(watch.take(_SOON_S)))
    thread.start()
    revision = writer.txn(puts={"a": b""})
    thread.join(_SOON_S / 2)
    assert [getattr(each, "revision", None) for each in taken] == [revision]
    for store in (reader, writer):
        store.close()


def test_a_lost_hint_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hints, "tell", lambda self, also_self=False: None)
    monkeypatch.setattr(module, "_IDLE_S", 0.01)
    writer, reader = (SqliteMetaStore(tmp_path / "meta.db", is_shared=True) for _ in range(2))
    watch = reader.watch("", 1)
    writer.txn(puts={"a": b""})
    assert watch.take(_SOON_S) is not None
    for store in (reader, writer):
        store.close()


def test_sockets_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    directory = tmp_path / "watchers"
    hints, other = Hints(directory), Hints(directory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
        gone.bind(str(directory / "1-gone"))
    other.listen()
    hints.tell()
    assert other.wait(_SOON_S)
    assert not (directory / "1-gone").exists()
    other.close()
    assert list(directory.iterdir()) == []
    hints.tell()
    hints.close()


def test_a_long_path_has_hints_as_well(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 50)
    hints, other = Hints(directory), Hints(directory)
    other.listen()
    hints.tell()
    assert other.wait(_SOON_S)
    for each in (hints, other):
        each.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_store_of_one_process_excludes_all_others(tmp_path: Path, is_shared: bool) -> None:
    path = tmp_path / "meta.db"
    first = SqliteMetaStore(path, is_shared=not is_shared)
    with pytest.raises(TimedOut):
        SqliteMetaStore(path, is_shared=is_shared, busy_s=0.05)
    first.txn(puts={"a": b""})
    first.close()


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    store = SqliteMetaStore(tmp_path / "meta.db", is_shared=True)
    store.txn(puts={"a": b"1"})
    found = []
    with store._writing() as db:
        db.execute("UPDATE entries SET value = x'32'")
        thread = threading.Thread(target=lambda: found.append(store.get("a")))
        thread.start()
        thread.join(_SOON_S)
    assert [each.value for each in found if each] == [b"1"]
    store.close()
