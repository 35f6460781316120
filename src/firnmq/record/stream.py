"""Batches out of bytes that come in pieces. No I/O: the caller reads, the stream judges."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from firnmq.record.batch import Buffer
from firnmq.record.codec import BatchEntry, walk

_TRUNCATED = "truncated"
_OFFSET_GAP = "offset gap"
_OFFSET_END = 2**63
"""Above every offset that a header can hold."""


class Reason(Enum):
    """Why a stream gives no more batches of the bytes it has."""

    INCOMPLETE = auto()
    """The next batch has not arrived whole; more bytes may complete it."""
    TORN = auto()
    """The bytes end before the next batch does."""
    CORRUPT = auto()
    """What follows is not a batch, or its CRC does not match."""
    GAP = auto()
    """The next batch does not begin where its predecessor ends."""
    OUT_OF_ORDER = auto()
    """The next batch does not rise within the bounds, where gaps are allowed."""


class Stop(NamedTuple):
    """Where a stream stands before bytes that it cannot take."""

    reason: Reason
    text: str
    """What is wrong, for an error's text."""


class Run(NamedTuple):
    """Some batches that stand one after the other in one buffer."""

    buffer: Buffer
    entries: list[BatchEntry]
    """Positions are within the buffer."""
    position: int
    """Where the buffer begins in the stream."""

    def batch(self, entry: BatchEntry) -> memoryview:
        return memoryview(self.buffer)[entry.position : entry.position + entry.size]


class BatchStream:
    """Judges the batches of a file, an object or a response, from first to last.

    A reader that can read a position again gives `judge` bytes that begin at `position`, and reads
    from there once more when `needed_bytes` were too few. A reader whose bytes come once gives
    them to `feed`, which keeps what is not a whole batch yet. `stop` says after each call why no
    more batches came; None means that all bytes were used.

    Batches must follow each other without a gap in offsets: the first bytes of a header are not
    covered by the CRC, and this check finds a wrong base offset. With `has_gaps`, offsets must
    still rise and stay below `end_offset`.
    """

    __slots__ = (
        "_end_offset",
        "_end_position",
        "_has_gaps",
        "_pieces",
        "_pieces_bytes",
        "_verify",
        "needed_bytes",
        "offset",
        "position",
        "stop",
    )

    def __init__(
        self,
        *,
        position: int = 0,
        offset: int | None = None,
        end_position: int | None = None,
        end_offset: int = _OFFSET_END,
        has_gaps: bool = False,
        verify: bool = True,
    ) -> None:
        self.position = position
        """Of the first byte that is not in a run yet."""
        self.offset = offset
        """Of the next batch, or the least it can be where there are gaps; None if any will do."""
        self.stop: Stop | None = None
        self.needed_bytes = 0
        """From `position` on, to judge the batch that is incomplete or torn; 0 without one."""
        self._end_position = end_position
        self._end_offset = end_offset
        self._has_gaps = has_gaps
        self._verify = verify
        self._pieces: list[Buffer] = []
        self._pieces_bytes = 0

    def judge(self, buffer: Buffer) -> Run | None:
        """The whole batches at the start of bytes that begin at `position`; None without one."""
        position = self.position
        size = len(buffer)
        if self._end_position is not None and size > self._end_position - position:
            size = max(self._end_position - position, 0)
        expected = None if self._has_gaps else self.offset
        found = walk(buffer, 0, size, expected_offset=expected, verify=self._verify)
        entries: list[BatchEntry] = found.headers
        taken: int = found.valid_end
        self.needed_bytes = found.needed_bytes
        self.stop = None
        if found.reason is not None:
            self.stop = self._stop(found.reason, position + taken)
        if self._has_gaps:
            number = _first_misplaced(entries, self.offset or 0, self._end_offset)
            if number is not None:
                taken = entries[number].position
                del entries[number:]
                self.needed_bytes = 0
                self.stop = Stop(Reason.OUT_OF_ORDER, "offset out of order")
        if not entries:
            return None
        self.position = position + taken
        self.offset = entries[-1].last_offset + 1
        return Run(buffer, entries, position)

    def feed(self, piece: Buffer) -> Run | None:
        """The batches that `piece`, which follows what was fed before, makes whole."""
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        if self._pieces_bytes < self.needed_bytes:
            return None
        buffer = self.rest()
        position = self.position
        run = self.judge(buffer)
        self._keep(memoryview(buffer)[self.position - position :])
        return run

    def rest(self) -> Buffer:
        """The bytes from `position` on that were fed and are in no run."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def skip(self, size: int, offset: int) -> None:
        """Goes on `size` bytes further, among those that were fed, at a batch of `offset`."""
        self._keep(memoryview(self.rest())[size:])
        self.position += size
        self.offset = offset
        self.needed_bytes = 0
        self.stop = None

    def finish(self) -> Stop | None:
        """No more bytes come: a batch that is incomplete now is torn."""
        if self.stop is not None and self.stop.reason is Reason.INCOMPLETE:
            self.stop = Stop(Reason.TORN, self.stop.text)
        return self.stop

    def _keep(self, rest: Buffer) -> None:
        self._pieces = [rest] if len(rest) else []
        self._pieces_bytes = len(rest)

    def _stop(self, text: str, position: int) -> Stop:
        if text == _TRUNCATED:
            end = self._end_position
            if end is not None and position + self.needed_bytes > end:
                return Stop(Reason.TORN, "a batch goes beyond the end")
            return Stop(Reason.INCOMPLETE, text)
        return Stop(Reason.GAP if text == _OFFSET_GAP else Reason.CORRUPT, text)


def _first_misplaced(entries: list[BatchEntry], start_offset: int, end_offset: int) -> int | None:
    """Index of the first batch that does not rise within [start, end); None if all do."""
    for number, entry in enumerate(entries):
        if entry.base_offset < start_offset or entry.last_offset >= end_offset:
            return number
        start_offset = entry.last_offset + 1
    return None
