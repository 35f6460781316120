"""All entries of a segment's indexes, page by page, wherever their rows are."""

from __future__ import annotations

from collections.abc import Iterator

from firnmq.index.layout import KEY, OFFSET, TAG, TIME, TIME_KEY, U64, unpack_offsets

KINDS = (OFFSET, TIME, KEY, TAG)
"""The indexes, as rows name them."""

Row = tuple[bytes, bytes]
"""An entry's key, without what all keys of its kind begin with, and its value."""


class IndexEntries:
    """Reads all entries of a segment; a subclass has the rows."""

    __slots__ = ()

    def rows(self, kind: int, after: bytes | None) -> list[Row]:
        """The rows of a kind in order, from the first or after the row with this key; as many as
        make a page, none at the end."""
        raise NotImplementedError

    def points(self) -> list[tuple[int, int, int]]:
        """Every point: offset, position, greatest timestamp before it; in order."""
        before = {
            offset: biased - 2**63
            for key, _ in self._all(TIME)
            for biased, offset in (TIME_KEY.unpack(key),)
        }
        found = []
        for key, place in self._all(OFFSET):
            offset: int = U64.unpack(key)[0]
            found.append((offset, int.from_bytes(place, "big"), before[offset]))
        return found

    def keys(self) -> Iterator[tuple[bytes, int, int]]:
        """Every key as it is stored, with its newest record's offset and batch; by key."""
        for key, entry in self._all(KEY):
            yield key, U64.unpack_from(entry)[0], int.from_bytes(entry[8:], "big")

    def tags(self) -> Iterator[tuple[bytes, int, int, list[int]]]:
        """Every tag as it is stored with a batch's base offset, position and relative offsets."""
        for key, entry in self._all(TAG):
            position, offsets = unpack_offsets(entry)
            yield key[2:-8], U64.unpack_from(key, len(key) - 8)[0], position, offsets

    def _all(self, kind: int) -> Iterator[Row]:
        after = None
        while page := self.rows(kind, after):
            yield from page
            after = page[-1][0]
