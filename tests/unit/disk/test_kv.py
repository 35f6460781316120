"""The key-value store: order, batches, shared syncs, and life after a failed write."""

import errno
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.kv import database as database_module
from firnmq.disk.kv.journal import JournalFile
from firnmq.errors import Closed, Corruption, DiskFull, StorageFailed

STATE, INDEX = Family.STATE, Family.INDEX


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[KeyValueStore]:
    kv = KeyValueStore(tmp_path / "db")
    yield kv
    kv.close()


def put(kv: KeyValueStore, *entries: tuple[bytes, bytes], family: Family = STATE) -> None:
    with kv.batch() as batch:
        batch.put_many(family, list(entries))


def test_entries_come_back_by_family(kv: KeyValueStore) -> None:
    put(kv, (b"k", b"v"))
    put(kv, (b"k", b"w"), (b"", b"empty key"), (b"e", b""), family=INDEX)
    assert kv.get(STATE, b"k") == b"v"
    assert kv.get(INDEX, b"k") == b"w"
    assert kv.get(INDEX, b"") == b"empty key"
    assert kv.get(INDEX, b"e") == b""
    assert kv.get(STATE, b"e") is None


def test_floor_is_the_greatest_at_or_below(kv: KeyValueStore) -> None:
    put(kv, (b"a1", b"1"), (b"a3", b"3"), (b"b1", b"x"))
    assert kv.floor(STATE, b"a", b"a3") == (b"a3", b"3")
    assert kv.floor(STATE, b"a", b"a2") == (b"a1", b"1")
    assert kv.floor(STATE, b"a", b"a9") == (b"a3", b"3")
    assert kv.floor(STATE, b"a", b"a0") is None
    assert kv.floor(STATE, b"b", b"b0") is None
    assert kv.floor(INDEX, b"a", b"a9") is None


def test_items_are_in_order_and_bounded(kv: KeyValueStore) -> None:
    put(kv, *((b"%d" % number, b"v" * 10) for number in (3, 1, 2, 5, 4)))
    assert [key for key, _ in kv.items(STATE, b"2", b"5")] == [b"2", b"3", b"4"]
    assert [key for key, _ in kv.items(STATE, b"", b"9", 2)] == [b"1", b"2"]
    assert [key for key, _ in kv.items(STATE, b"", b"9", max_bytes=1)] == [b"1"]
    assert [key for key, _ in kv.items(STATE, b"", b"9", max_bytes=20)] == [b"1", b"2"]
    assert [key for key, _ in kv.items(STATE, b"", b"9", max_bytes=21)] == [b"1", b"2", b"3"]
    assert kv.items(STATE, b"7", b"9") == []


def test_a_batch_is_written_whole_or_not_at_all(kv: KeyValueStore) -> None:
    with suppress(ZeroDivisionError), kv.batch() as batch:
        batch.put(STATE, b"k", b"v")
        raise ZeroDivisionError
    assert kv.get(STATE, b"k") is None
    put(kv, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    with kv.batch() as batch:
        batch.delete(STATE, b"a")
        batch.delete_range(STATE, b"b", b"c")
        batch.put(INDEX, b"x", b"y")
    assert [key for key, _ in kv.items(STATE, b"", b"z")] == [b"c"]
    assert kv.get(INDEX, b"x") == b"y"


def test_a_sync_serves_everyone_whose_write_came_before_it(kv: KeyValueStore) -> None:
    put(kv, (b"a", b"1"))
    kv.sync()
    count = kv.sync_count
    kv.sync()
    kv.sync()
    assert kv.sync_count == count, "there was nothing new to sync"
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        put(kv, (b"%d" % number, b"v"))
        barrier.wait()
        kv.sync()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= kv.sync_count - count <= 2


def test_entries_are_there_after_a_restart(tmp_path: Path) -> None:
    kv = KeyValueStore(tmp_path / "db")
    put(kv, (b"k", b"v"))
    kv.close()
    kv = KeyValueStore(tmp_path / "db")
    assert kv.get(STATE, b"k") == b"v"
    kv.close()


def test_after_a_failed_write_the_next_one_reopens_the_database(
    kv: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(kv, (b"before", b"1"))

    def refuse(self: JournalFile, parts: list[bytes]) -> None:
        raise OSError(errno.EIO, "the device said no")

    generation = kv._generation
    with monkeypatch.context() as patched:
        patched.setattr(JournalFile, "write", refuse)
        with pytest.raises(StorageFailed):
            put(kv, (b"lost", b"2"))
    assert kv.get(STATE, b"before") == b"1", "reads go on"
    put(kv, (b"after", b"3"))
    assert kv._generation is not generation
    assert [key for key, _ in kv.items(STATE, b"", b"z")] == [b"after", b"before"]
    kv.sync()


class Unwritten:
    """A part of the database that has no space to write out what it has in memory."""

    def close(self) -> None:
        raise OSError("IO error: No space left on device: While appending to file: 000036.sst")


def test_a_full_disk_keeps_no_database_from_closing_whose_log_is_synced(tmp_path: Path) -> None:
    kv = KeyValueStore(tmp_path / "db")
    put(kv, (b"k", b"v"))
    kv.sync()
    assert kv._generation is not None
    kv._generation.families[INDEX] = Unwritten()
    kv.close()
    kv = KeyValueStore(tmp_path / "db")
    assert kv.get(STATE, b"k") == b"v"
    put(kv, (b"unsynced", b"v"))
    assert kv._generation is not None
    kv._generation.families[INDEX] = Unwritten()

    def refuse() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    kv._journal.switch = refuse  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        kv.close()


def test_closed_is_closed(tmp_path: Path) -> None:
    kv = KeyValueStore(tmp_path / "db")
    kv.close()
    kv.close()
    with pytest.raises(Closed):
        kv.get(STATE, b"k")
    with pytest.raises(Closed):
        put(kv, (b"k", b"v"))


def test_a_damaged_database_is_called_so(tmp_path: Path) -> None:
    kv = KeyValueStore(tmp_path / "db")
    put(kv, (b"k", b"v"))
    kv.close()
    (tmp_path / "db" / "CURRENT").write_bytes(b"rubbish")
    with pytest.raises((Corruption, StorageFailed)):
        KeyValueStore(tmp_path / "db")


def test_writers_wait_for_merges_without_stopping_other_threads(
    kv: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB refuses writes while its merges are behind; the write waits and is repeated."""
    generation = kv._generation
    assert generation is not None

    class Behind:
        """The database, with merges that are behind for three writes."""

        def __init__(self, db: Any) -> None:
            self.db = db
            self.refusal_count = 0

        def write(self, batch: object, options: object) -> None:
            self.refusal_count += 1
            if self.refusal_count <= 3:
                raise Exception("Result incomplete: Write stall")
            self.db.write(batch, options)

    good = generation.db
    behind = generation.db = Behind(good)  # type: ignore[assignment]
    pauses: list[float] = []
    monkeypatch.setattr(database_module.time, "sleep", pauses.append)
    put(kv, (b"k", b"v"))
    generation.db = good
    assert behind.refusal_count == 4
    assert len(pauses) == 3
    assert kv.get(STATE, b"k") == b"v"
