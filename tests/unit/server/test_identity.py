"""A directory's node begins a new life at each start, and its two databases belong together."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from firnmq.disk import Family, KeyValueStore
from firnmq.errors import Corruption, OtherFormat
from firnmq.server import LocalStore, Store
from firnmq.testing import FakeClock


def life(path: Path, node: int | None = None) -> tuple[int, int]:
    store = LocalStore(path, background=False, node=node)
    store.close()
    return store.node.node, store.node.incarnation


def write(path: Path) -> None:
    with Store(LocalStore(path, background=False)) as store:
        topics = {topic.name for topic in store.topics()}
        topic = store.topic("t") if "t" in topics else store.create_topic("t")
        topic.append(b"v")
        topic.roll()


def test_the_incarnation_increases_at_each_start(tmp_path: Path) -> None:
    assert [life(tmp_path) for _ in range(3)] == [(1, 1), (1, 2), (1, 3)]
    assert [life(tmp_path, 7), life(tmp_path), life(tmp_path, 1)] == [(7, 1), (7, 2), (1, 4)]


def test_the_last_node_is_the_last_one_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = FakeClock()
    LocalStore(tmp_path, background=False, node=7, clock=clock).close()
    clock.set_back(3_600_000)
    LocalStore(tmp_path, background=False, node=1, clock=clock).close()
    store = LocalStore(tmp_path, background=False, clock=clock)
    store.close()
    assert store.node.node == 1


def test_lost_metadata_is_not_taken_for_an_empty_directory(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "meta.db").unlink()
    for _ in range(3):
        with pytest.raises(Corruption, match="metadata is gone"):
            life(tmp_path)


def test_a_lost_key_value_store_is_noticed(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.rmtree(tmp_path / "db")
    for _ in range(3):
        with pytest.raises(Corruption, match="key-value store is gone"):
            life(tmp_path)


def test_metadata_from_an_older_copy_is_noticed(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.copy(tmp_path / "meta.db", tmp_path / "copy")
    write(tmp_path)
    shutil.copy(tmp_path / "copy", tmp_path / "meta.db")
    for _ in range(3):
        with pytest.raises(Corruption, match="older than the key-value store"):
            life(tmp_path)


def test_metadata_of_another_directory_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    shutil.copy(tmp_path / "a" / "meta.db", tmp_path / "b" / "meta.db")
    with pytest.raises(Corruption, match="another data directory"):
        life(tmp_path / "b")


@pytest.mark.parametrize("family", list(Family))
def test_data_of_an_earlier_version_is_not_taken_for_an_empty_directory(
    tmp_path: Path, family: Family
) -> None:
    """Before there was meta.db, everything was in the key-value store."""
    kv = KeyValueStore(tmp_path / "db")
    with kv.batch() as batch:
        batch.put(family, b"T" + b"topic", b"old")
    kv.close()
    for _ in range(2):
        with pytest.raises(OtherFormat, match="made by an earlier version"):
            life(tmp_path)
    kv = KeyValueStore(tmp_path / "db")
    assert kv.items(family, b"", b"\xff") == [(b"Ttopic", b"old")]
    kv.close()


def test_segments_without_both_databases_are_not_taken_for_an_empty_directory(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    (tmp_path / "meta.db").unlink()
    shutil.rmtree(tmp_path / "db")
    for _ in range(2):
        with pytest.raises(OtherFormat, match="segments holds files"):
            life(tmp_path)


def test_metadata_of_another_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with sqlite3.connect(tmp_path / "meta.db") as db:
        db.execute("UPDATE counters SET value = 9 WHERE name = 'format'")
    db.close()
    with pytest.raises(OtherFormat, match="format 9"):
        life(tmp_path)


def test_a_start_that_was_interrupted_can_be_repeated(tmp_path: Path) -> None:
    """Of a new directory, the metadata may be there and the key-value store not yet."""
    life(tmp_path)
    shutil.rmtree(tmp_path / "db")
    assert life(tmp_path) == (1, 2)
    write(tmp_path)
