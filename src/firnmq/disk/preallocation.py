"""Preallocation: what a file has behind its last batch, for the appends to come.

Zeros are written ahead of small durable appends. Without them each append makes the file longer,
and the file system writes its own metadata before the append is durable.

Blocks are reserved ahead of larger appends, and the file's length stays as it is. Without that the
file system looks for space once for every page of the page cache, which takes a third of the
processor time of the write.
"""

from __future__ import annotations

from firnmq.disk.files import BLANK_BYTES_MAX, FileCache

PREALLOCATION_BYTES_MIN = 32 * 1024
"""Half of a file's length is preallocated, so a file of less than twice this gets nothing."""
SMALL_APPEND_BYTES = 32 * 1024
"""Up to this size, file system metadata is most of the cost of a durable append."""
RESERVED_BYTES_MAX = 8 * 1024 * 1024
RESERVED_BYTES_MIN = 1024 * 1024
"""A quarter of a file's length is reserved, so a file of less than four times this gets nothing."""


class Preallocation:
    """The preallocation of one file, whose owner passes the end of its content."""

    __slots__ = ("_end", "_files", "_least_left", "_path", "_reserved_end")

    def __init__(self, files: FileCache, path: str) -> None:
        self._files = files
        self._path = path
        self._end = 0
        """End of the zeros; below the end of the content without preallocation."""
        self._least_left = 0
        """With less than so many zeros left, the next ones are due."""
        self._reserved_end = 0
        """End of the reserved blocks, likewise."""

    def extend(self, position: int) -> bool:
        """Preallocates behind the end of the content if little is left; returns whether it did."""
        size = _wanted_bytes(position)
        if size == 0 or self._end - position >= _least_left(size):
            return False
        start = max(self._end, position)
        self._least_left = _least_left(size)
        self._end = start + size  # A failed write may have extended the file up to here.
        self._files.write_ahead(self._path, start, size)
        return True

    def has_room(self, end: int) -> bool:
        """Whether an append that ends here stays within the zeros and leaves enough of them."""
        return self._end - end >= self._least_left > 0

    def reserve(self, position: int, size: int) -> None:
        """Reserves blocks for a large append that is about to be made, and for those after it."""
        end = position + size
        if end <= self._reserved_end:
            return
        ahead = min(RESERVED_BYTES_MAX, position // 4)
        if ahead >= RESERVED_BYTES_MIN:
            start = max(self._reserved_end, position)
            self._reserved_end = end + ahead  # Not asked for again if it is refused.
            self._files.reserve(self._path, start, end + ahead - start)

    def release(self, position: int) -> None:
        """Truncates the file at the position; durable with the next sync."""
        if max(self._end, self._reserved_end) > position:
            self._files.truncate(self._path, position, durable=False)
            self.forget()

    def forget(self) -> None:
        """The file was truncated."""
        self._end = self._reserved_end = 0


def may_be_preallocated(position: int, size: int) -> bool:
    """Whether this many zeros behind the end of the content can be a preallocation.

    Only if appends are synced: otherwise zeros are records that a power failure destroyed.
    """
    wanted = _wanted_bytes(position)
    return 0 < size <= wanted + _least_left(wanted)


def _wanted_bytes(position: int) -> int:
    size = min(BLANK_BYTES_MAX, position // 2)
    return size if size >= PREALLOCATION_BYTES_MIN else 0


def _least_left(size: int) -> int:
    return size // 4
