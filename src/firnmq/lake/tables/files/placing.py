"""Finished files into a table's store, a few at a time, while the next ones are being made.

A disk that syncs and a store that is far away make a writer wait; here threads wait instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from firnmq.errors import ObjectNotFound
from firnmq.lake.tables.files.parquet import DataFile, Made

if TYPE_CHECKING:
    from firnmq.tiering.stores import ObjectStore

UNDER_WAY_BYTES_MAX: Final = 128 * 1024 * 1024
"""A file is waited for when more than this is on its way; a larger one goes alone."""
GROUP_BYTES: Final = 8 * 1024 * 1024
GROUP_FILES: Final = 64
"""Files that are written as one group, if that is cheaper; a group's files are all open."""
_THREADS: Final = 4


class Placing:
    """Puts files of one shard into a store under the names they are given, and notes them in the
    order in which they came. One thread uses it; leaving the context waits for all of them."""

    def __init__(self, store: ObjectStore, shard: int, name: Callable[[Made, int], str]) -> None:
        self._store = store
        self._shard = shard
        self._name = name
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="firn-lake-files")
        self._group: list[Made] = []
        self._group_bytes = 0
        self._files_max = GROUP_FILES if store.likes_groups else 1
        self._under_way: deque[tuple[int, Future[list[DataFile]]]] = deque()
        self._count = 0
        self.files: list[DataFile] = []
        """Those that are in the store; all of them once the context is left without an error."""

    def __enter__(self) -> Placing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._send()
                while self._under_way:
                    self._wait()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def put(self, made: Made) -> None:
        """Takes the file; raises what became of an earlier one."""
        self._group.append(made)
        self._group_bytes += len(made.content)
        if self._group_bytes >= GROUP_BYTES or len(self._group) >= self._files_max:
            self._send()

    def _send(self) -> None:
        """Starts the upload of the gathered files, once fewer uploads are running."""
        group, size = self._group, self._group_bytes
        if not group:
            return
        while self._under_way and self._under_way_bytes + size > UNDER_WAY_BYTES_MAX:
            self._wait()
        while self._under_way and self._under_way[0][1].done():
            self._wait()
        self._under_way.append((size, self._threads.submit(self._place, group, self._count)))
        self._count += len(group)
        self._group, self._group_bytes = [], 0

    @property
    def _under_way_bytes(self) -> int:
        return sum(size for size, _ in self._under_way)

    def _wait(self) -> None:
        self.files += self._under_way.popleft()[1].result()

    def _place(self, group: list[Made], first: int) -> list[DataFile]:
        names = [self._name(made, number) for number, made in enumerate(group, first)]
        self._store.upload_all(
            [
                (path, memoryview(made.content))
                for path, made in zip(names, group, strict=True)
                if self._store.likes_groups or not self._is_there(path, len(made.content))
            ]
        )
        return [
            DataFile(
                path=path,
                size=len(made.content),
                row_count=made.row_count,
                shard=self._shard,
                partition_value=made.partition_value,
                footer=made.footer,
            )
            for path, made in zip(names, group, strict=True)
        ]

    def _is_there(self, path: str, size: int) -> bool:
        """Whether an earlier attempt, or another process, has written the same bytes: a file's
        name holds a digest of them. A directory is not asked: a killed process may have left a
        name that is seen and not durable, and writing it again makes it so."""
        try:
            return self._store.head(path).size == size
        except ObjectNotFound:
            return False
