"""The end of a log, where it grows."""

from __future__ import annotations

from firnmq.engines.catalog.segments import Segment
from firnmq.index import IndexBuilder


class Tail:
    """Where the next batch goes: the active segment with its running state."""

    __slots__ = ("builder", "crc", "first_append_ms", "next_offset", "position", "segment")

    def __init__(
        self,
        segment: Segment,
        *,
        next_offset: int,
        position: int = 0,
        crc: int = 0,
        builder: IndexBuilder | None = None,
        first_append_ms: int | None = None,
    ) -> None:
        self.segment = segment
        self.next_offset = next_offset
        self.position = position
        self.crc = crc
        self.builder = builder or IndexBuilder()
        self.first_append_ms = first_append_ms
