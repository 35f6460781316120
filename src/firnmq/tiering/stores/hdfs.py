"""`hdfs://` through hdfs-native, which is used in this module only.

An object is a file. It is written below `.partial/`, synced to the disks of its DataNodes, closed,
and renamed to its key, which the NameNode does at once and only if it is told to may replace
another. hdfs-native has no time-outs and waits for a NameNode as long as it takes, so its calls run
in an event loop of their own, in a thread of their own, with a time-out around each.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial as bound
from typing import TYPE_CHECKING, TypeVar

from firnmq.config import StoreOptions
from firnmq.disk.files import Buffer
from firnmq.errors import (
    ObjectExists,
    ObjectNotFound,
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StorePackageMissing,
    StoreTimedOut,
    StoreUnavailable,
)
from firnmq.tiering.stores.api import (
    ObjectInfo,
    byte_length,
    check_key,
    check_prefix,
    check_range,
    every_key,
)

if TYPE_CHECKING:
    from hdfs_native import AsyncClient, AsyncFileWriter, FileStatus

T = TypeVar("T")

PARTIAL = ".partial"
"""No key begins with a dot, so nothing in here is an object."""

_PLACE_ATTEMPTS_MAX = 100
"""A directory may be removed as empty between its making and its use, by as many as delete."""

_UNCLOSED: list[object] = []
"""Writers that could not be closed: one that is freed can wait forever, holding the interpreter's
lock, for a thread that needs that lock."""

_DENIED = ("AccessControlException", "SaslException", "InvalidToken")
"""Names of Hadoop's exceptions, which hdfs-native gives only as text."""


class HdfsStore:
    """An ObjectStore below a directory of an HDFS."""

    likes_groups = False

    def __init__(self, host: str, prefix: str, options: StoreOptions) -> None:
        self.url = f"hdfs://{host}" + (f"/{prefix}" if prefix else "")
        try:
            import hdfs_native
        except ImportError as error:
            raise StorePackageMissing(self.url, "hdfs") from error
        self._options = options
        self._root = f"/{prefix}" if prefix else ""
        self._process = os.getpid()
        self._write_options = hdfs_native.WriteOptions(create_parent=True)
        self._host = host
        try:
            self._client = self._connect()
        except (OSError, ValueError, RuntimeError) as error:
            raise StoreError(self.url, _first_line(error)) from error
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hdfs", daemon=True)
        self._thread.start()

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> ObjectInfo:
        return self._write(key, (data,), byte_length(data), if_absent=if_absent)

    def upload(self, key: str, chunks: Iterable[Buffer], *, size: int) -> ObjectInfo:
        return self._write(key, chunks, size, if_absent=False)

    def upload_all(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        for key, data in objects:
            self.upload(key, (data,), size=byte_length(data))

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        path = self._path(key)
        check_range(start, size)

        async def read() -> bytes:
            reader = await self._client.read(path)
            found = max(0, len(reader) - start)
            if found < size:  # hdfs-native panics at a range beyond the end.
                raise ObjectTruncated(self.url, key, expected=size, found=found)
            return await reader.read_range(start, size) if size else b""

        return self._retried("get_range", key, read)

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        status = self._retried("head", key, lambda: self._client.get_file_info(path))
        if status.isdir:
            raise ObjectNotFound(self.url, key)
        return ObjectInfo(key, status.length, _e_tag(status), status.modification_time)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        prefix = check_prefix(prefix)
        folder = self._path(prefix) if prefix else self._root
        for status in self._statuses(folder, recursive=True):
            key = status.path.removeprefix(f"{self._root}/")
            is_inside = status.path != folder  # A file of that name is not below it.
            if not status.isdir and is_inside and not key.startswith("."):
                yield ObjectInfo(key, status.length, _e_tag(status), status.modification_time)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self._path(key)
            self._call("delete", key, lambda path=path: self._client.delete(path))  # type: ignore[misc]
        for folder in sorted({self._path(key).rpartition("/")[0] for key in keys}, reverse=True):
            self._prune(folder)

    def sweep(
        self, prefix: str, *, before_ms: int, is_meant: Callable[[str], bool] = every_key
    ) -> int:
        """What is in `.partial/` has no key yet, so the prefix does not matter."""
        check_prefix(prefix)
        statuses = self._statuses(f"{self._root}/{PARTIAL}", recursive=False)
        old = [each.path for each in statuses if each.modification_time < before_ms]
        for path in old:
            self._call("sweep", "", lambda path=path: self._client.delete(path))  # type: ignore[misc]
        return len(old)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(self._options.timeout_ms / 1000)
            if not self._thread.is_alive():
                self._loop.close()

    def _connect(self) -> AsyncClient:
        from hdfs_native import AsyncClient

        return AsyncClient(f"hdfs://{self._host}")

    def _write(
        self, key: str, chunks: Iterable[Buffer], size: int, *, if_absent: bool
    ) -> ObjectInfo:
        target = self._path(key)
        partial = f"{self._root}/{PARTIAL}/{secrets.token_hex(8)}"
        writer = self._call(
            "create", key, lambda: self._client.create(partial, self._write_options)
        )
        try:
            self._fill(writer, key, chunks, size)
            self._place(partial, target, key, if_absent=if_absent)
        except BaseException:
            self._discard(partial, writer)
            raise
        return self.head(key)

    def _fill(self, writer: AsyncFileWriter, key: str, chunks: Iterable[Buffer], size: int) -> None:
        written = 0
        for chunk in chunks:  # Errors of the caller's own iterator pass as they are.
            written += byte_length(chunk)
            if written > size:
                break
            self._call("write", key, lambda chunk=chunk: writer.write(chunk))  # type: ignore[misc]
        if written != size:
            raise ObjectTruncated(self.url, key, expected=size, found=written)
        if written:
            self._call("sync", key, writer.hsync)
        self._call("close", key, writer.close)

    def _place(self, partial: str, target: str, key: str, *, if_absent: bool) -> None:
        folder = target.rpartition("/")[0]
        for _ in range(_PLACE_ATTEMPTS_MAX):
            if folder:
                self._call("mkdirs", key, lambda: self._client.mkdirs(folder, create_parent=True))
            try:
                return self._call(
                    "rename",
                    key,
                    lambda: self._client.rename(partial, target, overwrite=not if_absent),
                )
            except ObjectNotFound:
                continue  # The folder was removed after its creation.
        raise StoreUnavailable(self.url, "its folder is removed again and again", key=key)

    def _discard(self, partial: str, writer: AsyncFileWriter) -> None:
        """After a failed write; if this fails too, the next sweep does it."""
        try:
            self._call("close", "", writer.close)
        except StoreError:
            _UNCLOSED.append(writer)
        try:
            self._call("delete", "", lambda: self._client.delete(partial))
        except StoreError:
            pass

    def _prune(self, folder: str) -> None:
        """Removes directories that have become empty; HDFS refuses to remove others."""
        while folder and folder != self._root:
            try:
                if not self._call("delete", "", bound(self._client.delete, folder)):
                    return
            except StoreError:
                return
            folder = folder.rpartition("/")[0]

    def _statuses(self, folder: str, *, recursive: bool) -> Iterator[FileStatus]:
        found: AsyncIterator[FileStatus] = self._client.list_status(folder or "/", recursive)
        while True:
            try:
                status = self._call("list", "?", lambda: _next(found))
            except ObjectNotFound:
                return
            if status is None:
                return
            yield status

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _retried(self, name: str, key: str, operation: Callable[[], Awaitable[T]]) -> T:
        """For idempotent operations; each attempt has the whole time-out."""
        for _ in range(self._options.retries):
            try:
                return self._call(name, key, operation)
            except StoreUnavailable as error:
                if isinstance(error, StoreTimedOut):
                    raise
        return self._call(name, key, operation)

    def _call(self, name: str, key: str, operation: Callable[[], Awaitable[T]]) -> T:
        if os.getpid() != self._process:
            raise StoreError(self.url, "was opened before a fork; open it again in this process")

        timeout_s = self._options.timeout_ms / 1000

        async def limited() -> T:
            async with asyncio.timeout(timeout_s):
                return await operation()

        with self._translated(name, key):
            # Twice the time-out for the loop itself, in case a call in it blocks the loop.
            return asyncio.run_coroutine_threadsafe(limited(), self._loop).result(2 * timeout_s)

    @contextmanager
    def _translated(self, name: str, key: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except FileExistsError as error:
            raise ObjectExists(self.url, key) from error
        except (FileNotFoundError, IsADirectoryError) as error:
            raise ObjectNotFound(self.url, key) from error
        except TimeoutError as error:
            raise StoreTimedOut(self.url, name, self._options.timeout_ms, key=key) from error
        except (OSError, RuntimeError, ValueError) as error:
            text = str(error)
            if "is not a directory" in text:  # Also said with an AccessControlException.
                raise ObjectNotFound(self.url, key) from error
            if isinstance(error, PermissionError) or any(name in text for name in _DENIED):
                raise StoreDenied(self.url, _first_line(error), key=key) from error
            raise StoreUnavailable(self.url, _first_line(error), key=key) from error
        except BaseException as error:
            if type(error).__name__ == "PanicException":
                # hdfs-native panics where a node refuses connections. Its type cannot be imported.
                self._client = self._connect()
                reason = f"cannot be reached: {_first_line(error)}"
                raise StoreUnavailable(self.url, reason, key=key) from error
            raise


async def _next(found: AsyncIterator[FileStatus]) -> FileStatus | None:
    return await anext(found, None)


def _e_tag(status: FileStatus) -> str:
    return f"{status.modification_time:x}-{status.length:x}"


def _first_line(error: BaseException) -> str:
    """The useful part of Hadoop's text, whose rest is a Java stack trace."""
    return str(error).replace("\\n", "\n").split("\n", 1)[0]
