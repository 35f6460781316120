"""Marks: the last record that a table or a stream has of a shard, to detect a truncated log.

A log that ends before its table is detected by its end. A log that has grown past the table's end
since the truncation is not: but it has another record at the offset of the last converted one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from firnmq.errors import Corruption, FirnError
from firnmq.lake.plans.plan import Plan, ShardPlan, Split, Wanted
from firnmq.lake.plans.splits import leader_split, split_plan
from firnmq.lake.reading.reader import SegmentUnavailable, read_split

_COLUMNS: Final = ("offset", "timestamp", "key", "value")
"""What no compaction changes in a record that stays."""
_DIGEST_BYTES: Final = 8


class LogReplaced(FirnError):
    """The log has another record at an offset than a table or a stream has read there: the log was
    truncated and has grown again. The records in between would never be read."""

    def __init__(self, topic: str, shard: int, offset: int, *, reader: str, remedy: str) -> None:
        super().__init__(
            f"shard {shard} of {topic!r} has another record at offset {offset:,} than {reader}: "
            "the log lost records that were read from it, and has grown again since, and what took "
            f"their offsets would be missing there. {remedy}"
        )
        self.topic = topic
        self.shard = shard
        self.offset = offset


class Mark(msgspec.Struct, frozen=True):
    """A record, so that it can be told from another at its offset."""

    offset: int
    digest: str

    @classmethod
    def of_text(cls, text: str) -> Mark | None:
        """As `text` has it; None for something else, which a later version may have written."""
        offset, _, digest = text.partition(":")
        return cls(int(offset), digest) if offset.isdecimal() and digest else None

    @property
    def text(self) -> str:
        return f"{self.offset}:{self.digest}"


class LastRow:
    """Lets rows pass, and remembers the last of them."""

    def __init__(self) -> None:
        self._rows: pa.RecordBatch | None = None

    def passing(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if batch.num_rows:
                self._rows = batch.slice(batch.num_rows - 1)
            yield batch

    @property
    def mark(self) -> Mark | None:
        """None if there was none."""
        if self._rows is None:
            return None
        row = self._rows.select(_COLUMNS)
        # As a number: there are times that no calendar has.
        times = row.column(1).cast(pa.int64())
        offset, key, value = (row.column(number)[0].as_py() for number in (0, 2, 3))
        content = msgspec.msgpack.encode((offset, times[0].as_py(), key, value))
        digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
        return Mark(offset, digest)


def find_mark(plan: Plan, shard: ShardPlan, offset: int, options: Mapping[str, str]) -> Mark | None:
    """The record that the log has at an offset; None where it has none any more, or cannot tell."""
    return last_mark(plan, shard, offset, offset + 1, options)


def last_mark(
    plan: Plan, shard: ShardPlan, start: int, end: int, options: Mapping[str, str]
) -> Mark | None:
    """The last record that the log has of these offsets; None where it has none, or cannot tell.

    The plan must begin there or before. Its object store is not asked where there is a node: that
    has the bytes, or gets them, and it is a batch or two that are wanted.
    """
    start, end = max(start, shard.start_offset), min(end, shard.end_offset)
    if start >= end:
        return None
    last = LastRow()
    wanted = Wanted(
        shards=(shard.shard,),
        start_offsets={shard.shard: start},
        end_offsets={shard.shard: end},
    )
    try:
        for split in _splits(plan, shard, wanted, start, end):
            for _ in last.passing(read_split(split, wanted, _COLUMNS, options)):
                pass
    except (Corruption, SegmentUnavailable):
        return None  # If the next records are damaged as well, their reader reports it.
    return last.mark


def _splits(plan: Plan, shard: ShardPlan, wanted: Wanted, start: int, end: int) -> list[Split]:
    if shard.leader is None:
        return split_plan(plan, wanted)
    found = split_plan(plan, wanted) if shard.segments else [leader_split(plan, shard, start, end)]
    return [
        msgspec.structs.replace(
            split,
            segments=tuple(msgspec.structs.replace(each, object=None) for each in split.segments),
        )
        for split in found
    ]
