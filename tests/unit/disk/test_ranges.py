"""Parts of files: kept open by who sends them, and never read by us."""

import gc
import os
import sys
from pathlib import Path

import pytest

from firnmq.disk import FileCache, FileRange
from firnmq.disk import ranges as ranges_module
from firnmq.disk.ranges import is_cached, mappings_left

SIZE = 3 * 4096 + 17
CONTENT = bytes(number % 251 for number in range(SIZE))


@pytest.fixture
def cache() -> FileCache:
    return FileCache(open_max=2)


def made(cache: FileCache, path: Path) -> str:
    cache.create(path)
    cache.write_at(str(path), [CONTENT], 0)
    return str(path)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("position", [0, 1, 4096, 5000])
def test_a_mapping_has_the_bytes(cache: FileCache, tmp_path: Path, position: int) -> None:
    part = cache.range_at(made(cache, tmp_path / "f"), position, 4099)
    assert len(part) == 4099
    assert part.mapped() == CONTENT[position : position + 4099]


def test_a_range_keeps_its_file_although_others_come_and_it_is_removed(
    cache: FileCache, tmp_path: Path
) -> None:
    path = made(cache, tmp_path / "f")
    part = cache.range_at(path, 10, 5)
    for number in range(4):
        made(cache, tmp_path / f"other-{number}")
    assert cache.statistics().open_files == 2
    cache.remove(path)
    cache.close()
    assert os.pread(part.fd, 5, 10) == CONTENT[10:15]
    fd, view = part.fd, part.mapped()
    del part
    gc.collect()
    assert not is_open(fd)
    assert view == CONTENT[10:15]


def test_mappings_are_counted_until_they_are_gone(cache: FileCache, tmp_path: Path) -> None:
    gc.collect()
    path = made(cache, tmp_path / "f")
    before = mappings_left()
    views = [cache.range_at(path, at, 10).mapped()[2:5] for at in range(3)]
    assert mappings_left() == before - 1, "all of one file share one"
    cache.forget(path)
    assert mappings_left() == before - 1
    views.clear()
    assert mappings_left() == before


def test_a_mapping_follows_a_file_that_grows_and_is_cut(cache: FileCache, tmp_path: Path) -> None:
    path = made(cache, tmp_path / "f")
    first = cache.range_at(path, 0, SIZE).mapped()
    cache.write_at(path, [CONTENT], SIZE)
    second = cache.range_at(path, SIZE - 5, SIZE).mapped()
    assert first == CONTENT
    assert second == (CONTENT + CONTENT)[SIZE - 5 : 2 * SIZE - 5]
    cache.truncate(path, 100)
    with pytest.raises(ValueError, match="has 100 bytes"):
        FileRange(
            fd=-1, position=90, size_bytes=3 * SIZE, held=cache.range_at(path, 0, 1).held
        ).mapped()
    cache.write_at(path, [b"x" * 2 * SIZE], 100)
    assert cache.range_at(path, 90, 20).mapped() == CONTENT[90:100] + b"x" * 10


def test_few_mappings_are_kept_for_later(cache: FileCache, tmp_path: Path) -> None:
    gc.collect()
    before = mappings_left()
    large = FileCache(open_max=500)
    for number in range(100):
        large.range_at(made(large, tmp_path / f"{number}"), 0, 10).mapped()
    assert before - mappings_left() <= 64
    large.close()
    gc.collect()
    assert mappings_left() >= before


def test_a_mapping_beyond_the_end_is_refused(cache: FileCache, tmp_path: Path) -> None:
    part = cache.range_at(made(cache, tmp_path / "f"), SIZE - 5, 9)
    before = mappings_left()
    with pytest.raises(ValueError, match="bytes, not"):
        part.mapped()
    with pytest.raises(OSError, match="Bad file descriptor"):
        FileRange(fd=-7, position=0, size_bytes=3).mapped()
    assert mappings_left() == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tell")
def test_what_is_in_the_page_cache(cache: FileCache, tmp_path: Path) -> None:
    path = made(cache, tmp_path / "f")
    part = cache.range_at(path, 5000, 4000)
    if not part.is_cached():
        pytest.skip("this kernel does not say what is cached")
    assert cache.read_nowait(path, 5000, 4000) == CONTENT[5000:9000]
    cache.sync(path)
    for _ in range(20):  # The system may be using a page just then, and keeps it.
        os.posix_fadvise(part.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not part.is_cached() and cache.read_nowait(path, 5000, 4000) is None:
            break
    else:
        pytest.skip("this file system keeps its pages")
    assert cache.read_at(path, 5000, 4000) == CONTENT[5000:9000]
    assert part.is_cached()
    assert cache.read_nowait(path, SIZE - 10, 20) is None, "there are only ten"


def test_where_nobody_can_tell_nothing_is_cached(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(cache, tmp_path / "f")
    part = cache.range_at(path, 0, 10)
    assert not is_cached(-1, 0, 10)
    monkeypatch.setattr(ranges_module, "_syscall", None)
    assert not part.is_cached()


def test_ranges_without_a_holder_are_values() -> None:
    assert FileRange(fd=3, position=1, size_bytes=2) == FileRange(fd=3, position=1, size_bytes=2)
