"""A table of cached parts of objects, the least recently used first.

An object is divided into pieces of equal size. An extent is one or more pieces that were fetched
together; the last one of an object may end early.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """Bytes of an object that are cached as a unit: the whole object, or the head or rest of an
    index."""

    key: str
    """Of the object in the store."""
    start: int
    """Where the part begins in the object."""
    length: int
    is_head: bool = False
    """Small and needed first: cached in a separate directory."""
    name: str = field(init=False, compare=False)
    """Identifies the part in the cache. Computed once, since every lookup needs it."""

    def __post_init__(self) -> None:
        name = f"{self.key}@{self.start}" + ("h" if self.is_head else "")
        object.__setattr__(self, "name", name)


class Extent(NamedTuple, Generic[T]):
    part: str
    """Name of the part."""
    start: int
    """Counted from the part's beginning."""
    size: int
    content: T


class ExtentTable(Generic[T]):
    """Extents in the order of insertion or use. The owner's lock guards it."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._by_use: OrderedDict[tuple[str, int], Extent[T]] = OrderedDict()
        self._by_piece: dict[tuple[str, int], Extent[T]] = {}
        self._by_part: dict[str, set[int]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def find(self, part: str, piece: int) -> Extent[T] | None:
        """The extent that holds a piece."""
        return self._by_piece.get((part, piece))

    def use(self, part: str, piece: int) -> Extent[T] | None:
        """The extent that holds a piece; it counts as used now."""
        extent = self._by_piece.get((part, piece))
        if extent is not None:
            self._by_use.move_to_end((part, extent.start))
        return extent

    def use_at(self, part: str, start: int) -> Extent[T] | None:
        """The extent that begins there; it counts as used now."""
        extent = self._by_use.get((part, start))
        if extent is not None:
            self._by_use.move_to_end((part, start))
        return extent

    def holds(self, part: str, piece: int) -> bool:
        return (part, piece) in self._by_piece

    def has_part(self, part: str) -> bool:
        return part in self._by_part

    def first_held(self, part: str, pieces: range) -> int:
        """The first of these pieces that is held; the end of the range if none is."""
        if part in self._by_part:
            for piece in pieces:
                if (part, piece) in self._by_piece:
                    return piece
        return pieces.stop

    def put(self, extent: Extent[T]) -> Extent[T] | None:
        """Adds an extent; returns the one that began in the same place, if there was one."""
        replaced = self._by_use.get((extent.part, extent.start))
        if replaced is not None:
            self.remove(replaced)
        self._by_use[extent.part, extent.start] = extent
        self._by_part.setdefault(extent.part, set()).add(extent.start)
        for piece in self._pieces(extent):
            self._by_piece[extent.part, piece] = extent
        self.size_bytes += extent.size
        return replaced

    def remove(self, extent: Extent[T]) -> bool:
        """Takes an extent out; False if it was no longer there."""
        if self._by_use.get((extent.part, extent.start)) is not extent:
            return False
        del self._by_use[extent.part, extent.start]
        starts = self._by_part[extent.part]
        starts.discard(extent.start)
        if not starts:
            del self._by_part[extent.part]
        for piece in self._pieces(extent):
            if self._by_piece.get((extent.part, piece)) is extent:
                del self._by_piece[extent.part, piece]
        self.size_bytes -= extent.size
        return True

    def remove_part(self, part: str) -> list[Extent[T]]:
        """Takes out all extents of a part."""
        removed = [self._by_use[part, start] for start in self._by_part.get(part, ())]
        for extent in removed:
            self.remove(extent)
        return removed

    def remove_oldest(self) -> Extent[T]:
        oldest = next(iter(self._by_use.values()))
        self.remove(oldest)
        return oldest

    def _pieces(self, extent: Extent[T]) -> range:
        first = extent.start // self._piece_bytes
        return range(first, -(-(extent.start + extent.size) // self._piece_bytes))
