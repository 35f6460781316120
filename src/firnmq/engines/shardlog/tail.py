"""The end of a log, where it grows."""

from __future__ import annotations

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Segment
from firnmq.index import Checkpoint, IndexBuilder
from firnmq.record import chain_batch_crc, crc32c

_KEEP_LOCK = 0
"""Tells crc32c not to let go of the interpreter's lock: a batch takes microseconds, and to get
the lock back the worker would wait behind every caller that is preparing a request."""
_CHAINED_BYTES_MIN = 4096
"""From this size on, a batch's own CRC is worked into the segment's faster than its bytes are."""


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

    def checkpoint(self) -> Checkpoint:
        """The present end, as one that is synced and indexed up to here."""
        return Checkpoint(
            next_offset=self.next_offset,
            position=self.position,
            crc=self.crc,
            max_timestamp=self.builder.max_timestamp,
            records_since_point=self.builder.records_since_point,
            indexed_upto=self.next_offset,
            first_expiry_ms=self.builder.first_expiry_ms,
        )


def chained(crc: int, batch: Buffer) -> int:
    """The CRC of a segment's bytes with a batch behind them, whose own CRC is right."""
    if len(batch) < _CHAINED_BYTES_MIN:
        return crc32c(batch, crc, _KEEP_LOCK)
    return chain_batch_crc(crc, batch)
