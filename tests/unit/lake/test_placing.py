"""Files on their way into a table's store."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from firnmq.errors import StoreUnavailable
from firnmq.lake import placing
from firnmq.lake.parquet import Made
from firnmq.lake.placing import Placing
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

    def upload(self, key, chunks, *, size):  # type: ignore[no-untyped-def]
        self.names.append(key)
        self.begun.release()
        self.let_go.wait(30)
        return super().upload(key, chunks, size=size)


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
    store = Held(tmp_path)
    with Placing(store, 0, name) as files:
        files.put(made(1))
        files.put(made(2))
        for _ in range(2):
            assert store.begun.acquire(timeout=30)
        store.let_go.set()
    assert len(files.files) == 2


def test_what_is_on_its_way_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "UNDER_WAY_BYTES_MAX", 25)
    store = Held(tmp_path)
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
    store = Held(tmp_path)
    with Placing(store, 0, name) as second:
        second.put(made(1))
    assert second.files == first.files
    assert store.names == []


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    class Down(LocalStore):
        def upload(self, key, chunks, *, size):  # type: ignore[no-untyped-def]
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
