"""Files on their way into a table's store."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from firnmq.disk.files import Buffer
from firnmq.errors import StoreUnavailable
from firnmq.lake.tables.files import placing
from firnmq.lake.tables.files.parquet import Made
from firnmq.lake.tables.files.placing import Placing
from firnmq.tiering.stores.local import LocalStore


def made(number: int, size: int = 10) -> Made:
    content = pa.py_buffer(bytes([number]) * size)
    return Made(
        partition="2026-01-01", partition_value=0, content=content, row_count=number, footer=b""
    )


def name(file: Made, number: int) -> str:
    return f"{number}-{file.digest}"


class Held(LocalStore):
    """Nothing is written before it is let go; notes how much was tried at once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.let_go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.names: list[str] = []

    def upload_all(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        if not objects:
            return
        self.names += [key for key, _ in objects]
        self.begun.release()
        self.let_go.wait(30)
        super().upload_all(objects)


class FarAway(Held):
    likes_groups = False


def test_files_are_noted_in_their_order_and_all_are_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with Placing(store, 3, name) as files:
        for number in range(20):
            files.put(made(number))
    assert [each.row_count for each in files.files] == list(range(20))
    assert {each.shard for each in files.files} == {3}
    for each in files.files:
        assert store.head(each.path).size == each.size


def test_the_next_file_is_made_while_others_are_written(tmp_path: Path) -> None:
    store = FarAway(tmp_path)
    with Placing(store, 0, name) as files:
        files.put(made(1))
        files.put(made(2))
        for _ in range(2):
            assert store.begun.acquire(timeout=30)
        store.let_go.set()
    assert len(files.files) == 2


@pytest.mark.parametrize(("limit", "value"), [("GROUP_BYTES", 30), ("GROUP_FILES", 3)])
def test_small_files_go_together_where_that_costs_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(placing, limit, value)
    groups: list[int] = []

    class Counting(LocalStore):
        def upload_all(self, objects: Sequence[tuple[str, Buffer]]) -> None:
            groups.append(len(objects))
            super().upload_all(objects)

    store = Counting(tmp_path)
    with Placing(store, 0, name) as files:
        for number in range(8):
            files.put(made(number))
    assert sorted(groups) == [2, 3, 3]
    assert [each.row_count for each in files.files] == list(range(8))
    assert [store.head(each.path).size for each in files.files] == [10] * 8


def test_what_is_on_its_way_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "UNDER_WAY_BYTES_MAX", 25)
    store = FarAway(tmp_path)
    with Placing(store, 0, name) as files:
        files.put(made(1))
        files.put(made(2))
        third = threading.Thread(target=files.put, args=(made(3),))
        third.start()
        third.join(0.2)
        assert third.is_alive()
        assert len(store.names) <= 2
        store.let_go.set()
        third.join(30)
        files.put(made(4, size=100))  # Larger than the limit: alone.
    assert [each.size for each in files.files] == [10, 10, 10, 100]


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    with Placing(LocalStore(tmp_path), 0, name) as first:
        first.put(made(1))
    store = FarAway(tmp_path)
    with Placing(store, 0, name) as second:
        second.put(made(1))
    assert second.files == first.files
    assert store.names == []


def test_a_name_that_may_not_be_durable_is_written_again(tmp_path: Path) -> None:
    """A writer that was killed between a name and the sync of its directory leaves such a file."""
    with Placing(LocalStore(tmp_path), 0, name) as first:
        first.put(made(1))
    store = Held(tmp_path)
    store.let_go.set()
    with Placing(store, 0, name) as second:
        second.put(made(1))
    assert second.files == first.files
    assert store.names == [each.path for each in first.files]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    class Down(LocalStore):
        def upload_all(self, objects: Sequence[tuple[str, Buffer]]) -> None:
            raise StoreUnavailable(self.url, "it is down")

    with pytest.raises(StoreUnavailable), Placing(Down(tmp_path), 0, name) as files:
        files.put(made(1))


def test_an_error_elsewhere_is_not_hidden(tmp_path: Path) -> None:
    def write() -> None:
        with Placing(LocalStore(tmp_path), 0, name) as files:
            files.put(made(1))
            raise KeyError

    with pytest.raises(KeyError):
        write()
