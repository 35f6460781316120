"""What an object store does, and what a key may look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from firnmq.disk.files import Buffer
from firnmq.errors import InvalidArgument

KEY_LENGTH_MAX = 900
"""S3 allows 1,024 bytes, and a URL's prefix needs room too."""

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]*")
"""Between two slashes: what needs no escape in any store, and no leading dot."""


class ObjectInfo(NamedTuple):
    """An object of a store. `modified_ms` is by the store's clock; after a write, by ours."""

    key: str
    size: int
    e_tag: str | None
    modified_ms: int


def every_key(key: str) -> bool:
    return True


class ObjectStore(Protocol):
    """Objects by key: written as a whole, read by ranges, never changed in place.

    Calls block and are safe in any number of threads; an event loop must not make them. Each ends
    within its time-outs, whatever the store does. A store must not be used in a process that was
    forked from the one that opened it. Errors are the `StoreError` kinds.
    """

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        ...

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> ObjectInfo:
        """Writes a small object in one request; it is durable when this returns.

        With `if_absent`, exactly one of several concurrent writers succeeds and the others get
        `ObjectExists`.
        """
        ...

    def upload(self, key: str, chunks: Iterable[Buffer], *, size: int) -> ObjectInfo:
        """Writes an object of any size, replacing one of that name; durable when this returns.

        Parts go in parallel and memory is bounded. The object appears whole or not at all: if the
        chunks are not `size` bytes together, or raise, or the store fails, nothing is visible and
        what was sent is discarded. What could not be discarded, `sweep` finds. The chunks must not
        come from a call to a store in the same thread.
        """
        ...

    def upload_all(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        """Uploads several objects. All are durable when this returns; if it raises, some may
        exist."""
        ...

    @property
    def likes_groups(self) -> bool:
        """Whether `upload_all` is the cheapest way to write many small objects; otherwise parallel
        uploads are faster."""
        ...

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Exactly `size` bytes from byte `start` on; `ObjectTruncated` if there are fewer."""
        ...

    def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below a folder; "" is everything. Pages are fetched as they are needed.

        Objects of one folder come in the order of their names; which folder comes first is the
        store's choice. A prefix ends where a name between slashes ends: "a/b" covers "a/b/c", not
        "a/bc".
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Removes objects; those that are not there are no error."""
        ...

    def sweep(
        self, prefix: str, *, before_ms: int, is_meant: Callable[[str], bool] = every_key
    ) -> int:
        """Discards unfinished uploads below a folder that were begun before `before_ms`; how many.

        `is_meant` decides by key, where there is one: other programs may use the same bucket.
        Unfinished uploads are not visible as objects, but stores keep them and charge for them.
        """
        ...

    def close(self) -> None: ...


def check_key(key: str) -> str:
    """The key itself, if it is valid in every store."""
    if len(key) > KEY_LENGTH_MAX:
        raise InvalidArgument("key", f"{len(key)} characters, the limit is {KEY_LENGTH_MAX}")
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment):
            raise InvalidArgument(
                "key",
                f"{key!r} has a part {segment!r}; parts between slashes are letters, digits and "
                "._=+@,- and do not begin with a dot",
            )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix without a slash at its end."""
    prefix = prefix.removesuffix("/")
    return check_key(prefix) if prefix else ""


def check_range(start: int, size: int) -> None:
    if start < 0 or size < 0:
        raise InvalidArgument("range", f"start {start} and size {size} must not be negative")


def byte_length(data: Buffer) -> int:
    return memoryview(data).nbytes
