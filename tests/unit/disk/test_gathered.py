"""Durable writes in parts that the device begins with early."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from firnmq.disk import FileCache, gathered
from firnmq.disk.gathered import PART_BYTES

pytestmark = pytest.mark.skipif(not gathered.IS_COMPILED, reason="there is no compiled form here")

PAGE_BYTES = 4096


def written(path: Path, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> bytes:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        size = gathered.write_durably(descriptor, buffers, position)
        assert size == sum(map(len, buffers))
        return os.pread(descriptor, size + 1, position)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1],
        [PAGE_BYTES] * 3,
        [PART_BYTES],
        [PART_BYTES - 1, 2],
        [PART_BYTES + 1],
        [5 * PART_BYTES + 17],
        [105_001] * 40,
        [7] * 5_000,
        [0, PART_BYTES, 0, 0, PART_BYTES // 2, 0],
        [3, 4 * PART_BYTES, 5, 0, PART_BYTES - 1, 1],
    ],
    ids=lambda sizes: f"{len(sizes)} of {max(sizes, default=0)}",
)
@pytest.mark.parametrize("position", [0, 1, PAGE_BYTES, 3 * PAGE_BYTES + 5])
def test_all_bytes_are_there_in_order(tmp_path: Path, sizes: list[int], position: int) -> None:
    buffers = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    assert written(tmp_path / "f", buffers, position) == b"".join(buffers)


def test_any_kind_of_buffer_will_do(tmp_path: Path) -> None:
    view = memoryview(b"--views--")[2:-2]
    buffers = [b"bytes", bytearray(b"array"), view, memoryview(bytearray(b"writable"))]
    assert written(tmp_path / "f", buffers, 0) == b"bytesarrayviewswritable"


def test_what_follows_the_written_bytes_stays(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"." * (3 * PART_BYTES))
    written(tmp_path / "f", [b"a" * PART_BYTES, b"b"], 10)
    content = (tmp_path / "f").read_bytes()
    assert content == b"." * 10 + b"a" * PART_BYTES + b"b" + b"." * (2 * PART_BYTES - 11)


def test_the_systems_error_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="descriptor") as caught:
            gathered.write_durably(descriptor, [b"x" * 10], 0)
        assert caught.value.errno == errno.EBADF
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_device_is_told() -> None:
    descriptor = os.open("/dev/full", os.O_RDWR)
    try:
        with pytest.raises(OSError, match="space") as caught:
            gathered.write_durably(descriptor, [b"x" * PART_BYTES] * 3, 0)
        assert caught.value.errno == errno.ENOSPC
    finally:
        os.close(descriptor)


def test_buffers_are_let_go_whatever_happens(tmp_path: Path) -> None:
    data = bytearray(b"x" * 10)
    written(tmp_path / "f", [data], 0)
    data.append(1)  # Raises BufferError while the buffer is exported.
    with pytest.raises(TypeError):
        written(tmp_path / "f", [data, "no buffer"], 0)  # type: ignore[list-item]
    data.append(2)


def test_large_durable_writes_of_the_file_cache_go_this_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    whole = gathered.write_durably

    def noted(fd: int, buffers: Sequence[bytes], position: int) -> int:
        calls.append(position)
        return whole(fd, buffers, position)

    monkeypatch.setattr(gathered, "write_durably", noted)
    cache = FileCache()
    path = str(tmp_path / "f")
    cache.create(tmp_path / "f")
    cache.write_at(path, [b"a" * PART_BYTES], 0, durable=True)
    cache.write_at(path, [b"b" * PART_BYTES] * 2, PART_BYTES, durable=False)
    assert calls == []
    cache.write_at(path, [b"c" * PART_BYTES] * 2, 3 * PART_BYTES, durable=True)
    assert calls == [3 * PART_BYTES]
    expected = b"a" * PART_BYTES + b"b" * 2 * PART_BYTES + b"c" * 2 * PART_BYTES
    assert cache.read_at(path, 0, 10 * PART_BYTES) == expected
    assert cache.statistics().sync_count == 2
    cache.close()
