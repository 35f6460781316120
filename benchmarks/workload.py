"""What several benchmarks share: values, groups of writers, and a bare writer to compare with."""

import asyncio
import os
import random
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import percentile
from firnmq.disk import FileCache
from firnmq.disk.files import Buffer

VALUE_BYTES = 1024
WRITER_COUNT = 64
BATCH_RECORDS = 100
MEGABYTE = 1_000_000


def values(count: int, size: int = VALUE_BYTES, seed: int = 1) -> list[bytes]:
    """Values that no cache or compression can make cheaper than a user's own."""
    source = random.Random(seed)
    return [source.randbytes(size) for _ in range(count)]


def event_values(size: int, count: int = 500, seed: int = 1) -> list[bytes]:
    """JSON events of about this size, which compress as a user's own do."""
    source = random.Random(seed)
    made = []
    for number in range(count):
        event: list[str] = []
        length = 0
        while length < size:
            event.append(
                f'{{"user":{source.randrange(10**6)},"page":"/item/{source.randrange(10**4)}",'
                f'"ms":{source.randrange(10**3)},"id":"{source.getrandbits(64):016x}"}}'
            )
            length += len(event[-1]) + 1
        made.append((f"[{number}," + ",".join(event))[: size - 1].encode() + b"]")
    return made


def run_threads(work: Callable[[int], None], count: int) -> float:
    """Seconds from the common start of `count` threads until the last one is done."""
    barrier = threading.Barrier(count + 1)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if errors:
        raise errors[0]
    return seconds


async def run_tasks(work: Callable[[int], Awaitable[None]], count: int) -> float:
    """The same with tasks of the running event loop."""

    async def run(number: int) -> None:
        await work(number)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(run(number))
    return time.perf_counter() - started


@contextmanager
def fresh_directory(parent: Path, name: str) -> Iterator[Path]:
    """A directory of one round, removed with what is in it so that rounds do not pile up."""
    directory = parent / name
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


class GroupRecorder:
    """Notes what a store really writes between two syncs: the sizes of the buffers."""

    def __init__(self, files: FileCache) -> None:
        self.groups: list[list[int]] = []
        self._open_group: list[int] = []
        self._write_at, self._sync = files.write_at, files.sync
        files.write_at = self._record_write  # type: ignore[method-assign]
        files.sync = self._record_sync  # type: ignore[method-assign]

    def _record_write(
        self, path: str, buffers: Sequence[Buffer], position: int, *, durable: bool = False
    ) -> int:
        self._open_group += map(len, buffers)
        written = self._write_at(path, buffers, position, durable=durable)
        if durable:
            self._close_group()
        return written

    def _record_sync(self, path: str) -> None:
        self._sync(path)
        self._close_group()

    def _close_group(self) -> None:
        self.groups.append(self._open_group)
        self._open_group = []


def write_groups(path: Path, groups: Sequence[Sequence[int]], arena: Sequence[bytes]) -> float:
    """MB/s of a bare loop that writes and syncs buffers of these sizes to a new file."""
    views = [memoryview(block) for block in arena]
    prepared, number = [], 0
    for group in groups:
        buffers = []
        for size in group:
            buffers.append(views[number % len(views)][:size])
            number += 1
        prepared.append(buffers)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    try:
        position = 0
        started = time.perf_counter()
        for buffers in prepared:
            written = os.pwritev(descriptor, buffers, position)
            assert written == sum(map(len, buffers))
            position += written
            os.fdatasync(descriptor)
        seconds = time.perf_counter() - started
    finally:
        os.close(descriptor)
        path.unlink()
    return position / MEGABYTE / seconds


def timed(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds that each call took."""
    figures = []
    for call in calls:
        started = time.perf_counter()
        call()
        figures.append(time.perf_counter() - started)
    return figures


def p50(figures: Sequence[float]) -> float:
    return percentile(figures, 50)


def p99(figures: Sequence[float]) -> float:
    return percentile(figures, 99)
