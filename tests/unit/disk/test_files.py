"""The cache of open files: few descriptors, whole writes, durable names."""

import os
import threading
from pathlib import Path

import pytest

from firnmq.disk import FileCache, remove_tree
from firnmq.disk import files as files_module


@pytest.fixture
def cache() -> FileCache:
    return FileCache(open_max=3)


def made(cache: FileCache, path: Path) -> str:
    cache.create(path)
    return str(path)


def test_bytes_come_back(cache: FileCache, tmp_path: Path) -> None:
    path = made(cache, tmp_path / "a" / "b" / "c.log")
    assert cache.write_at(path, [b"one", bytearray(b"two"), memoryview(b"three")], 0) == 11
    assert cache.write_at(path, [b"!"], 11) == 1
    cache.sync(path)
    assert cache.read_at(path, 0, 100) == b"onetwothree!"
    assert cache.read_at(path, 3, 3) == b"two"
    assert cache.read_at(path, 50, 3) == b""
    assert cache.length(path) == 12
    cache.truncate(path, 3)
    assert cache.read_at(path, 0, 100) == b"one"
    statistics = cache.statistics()
    assert (statistics.written_bytes, statistics.sync_count) == (12, 2)
    cache.close()


def test_only_so_many_files_stay_open(cache: FileCache, tmp_path: Path) -> None:
    paths = [made(cache, tmp_path / f"{number}") for number in range(10)]
    for number, path in enumerate(paths):
        cache.write_at(path, [b"%d" % number], 0)
        assert cache.statistics().open_files <= 3
    cache.read_at(paths[8], 0, 1)
    opened = cache.statistics().open_count
    for path in paths[7:]:
        cache.read_at(path, 0, 1)
    assert cache.statistics().open_count == opened
    for number, path in enumerate(paths):
        assert cache.read_at(path, 0, 9) == b"%d" % number
    cache.close()
    assert cache.statistics().open_files == 0


def test_more_buffers_than_one_call_takes(cache: FileCache, tmp_path: Path) -> None:
    path = made(cache, tmp_path / "f")
    buffers = [b"%05d" % number for number in range(2 * files_module.IOV_MAX + 7)]
    assert cache.write_at(path, buffers, 3) == 5 * len(buffers)
    assert cache.read_at(path, 3, 10**6) == b"".join(buffers)
    cache.close()


@pytest.mark.parametrize("durable", [False, True])
def test_short_writes_are_finished(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    whole = os.pwritev
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda fd, buffers, at, flags: whole(fd, [b"".join(buffers)[:7]], at, flags),
    )
    path = made(cache, tmp_path / "f")
    cache.write_at(path, [b"0123456789", b"abcdefghij"], 0, durable=durable)
    assert cache.read_at(path, 0, 100) == b"0123456789abcdefghij"
    cache.close()


def test_short_reads_are_finished(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(cache, tmp_path / "f")
    cache.write_at(path, [b"0123456789"], 0)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))
    assert cache.read_at(path, 1, 8) == b"12345678"
    assert cache.read_at(path, 5, 100) == b"56789"
    cache.close()


def test_a_missing_file_is_an_error_to_read_and_none_to_remove(
    cache: FileCache, tmp_path: Path
) -> None:
    path = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        cache.read_at(path, 0, 1)
    assert cache.length(path) is None
    cache.remove(path)
    remove_tree(tmp_path / "no" / "such")


def test_a_file_made_anew_under_an_old_name_is_another(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when someone is reading the old one at that moment."""
    path = made(cache, tmp_path / "f")
    cache.write_at(path, [b"old"], 0)
    inside, go_on = threading.Event(), threading.Event()
    whole = os.pread

    def slow(descriptor: int, size: int, position: int) -> bytes:
        inside.set()
        go_on.wait()
        return whole(descriptor, size, position)

    monkeypatch.setattr(os, "pread", slow)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(cache.read_at(path, 0, 3)))
    reader.start()
    inside.wait()
    cache.remove(path)
    cache.create(Path(path))
    cache.write_at(path, [b"new"], 0)
    go_on.set()
    reader.join()
    assert found == [b"old"]
    assert Path(path).read_bytes() == b"new"
    assert cache.read_at(path, 0, 3) == b"new"
    cache.close()


def test_closing_lets_a_reader_finish(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(cache, tmp_path / "f")
    cache.write_at(path, [b"abc"], 0)
    whole = os.pread

    def closing(descriptor: int, size: int, position: int) -> bytes:
        cache.close()
        return whole(descriptor, size, position)

    monkeypatch.setattr(os, "pread", closing)
    assert cache.read_at(path, 0, 3) == b"abc"
    assert cache.statistics().open_files == 0


def test_a_reader_does_not_keep_a_file_that_is_being_removed(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the reader comes right before the name goes or right after."""
    path = made(cache, tmp_path / "f")
    cache.write_at(path, [b"abc"], 0)
    unlink = os.unlink

    def reading(name: str) -> None:
        assert cache.read_at(path, 0, 3) == b"abc"
        unlink(name)
        assert cache.read_at(path, 0, 3) == b"abc", "it was open already"

    monkeypatch.setattr(os, "unlink", reading)
    cache.remove(path)
    assert cache.statistics().open_files == 0
    with pytest.raises(FileNotFoundError):
        cache.read_at(path, 0, 3)


def test_a_file_made_again_is_not_the_one_that_was_removed(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(cache, tmp_path / "f")
    cache.write_at(path, [b"old"], 0)
    unlink = os.unlink

    def reading(name: str) -> None:
        cache.read_at(path, 0, 3)
        unlink(name)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", reading)
        cache.remove(path)
    made(cache, tmp_path / "f")
    cache.write_at(path, [b"new"], 0)
    assert Path(path).read_bytes() == b"new"


def test_a_file_that_was_removed_while_open_is_not_durable(
    cache: FileCache, tmp_path: Path
) -> None:
    for name, make_durable in (
        ("write", lambda path: cache.write_at(path, [b"two"], 3, durable=True)),
        ("sync", cache.sync),
    ):
        path = made(cache, tmp_path / name)
        cache.write_at(path, [b"one"], 0)
        os.unlink(path)
        with pytest.raises(FileNotFoundError, match="removed while in use"):
            make_durable(path)
        assert cache.statistics().open_files == 0
