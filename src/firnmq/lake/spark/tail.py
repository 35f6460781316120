"""The part of a typed topic that is not in its table yet: read from the log, parsed as a sync does.

Runs in executors. What does not fit the schema is no row: a sync makes a dead letter of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import pyarrow as pa

from firnmq.eventlog import EventLogger
from firnmq.lake.plans.plan import Split, Wanted
from firnmq.lake.reading.projection import by_name, projected
from firnmq.lake.reading.reader import read_split
from firnmq.lake.reading.runs import Lost
from firnmq.lake.typed.kept import KeptSchema
from firnmq.lake.typed.rows import fitting_rows, raw_columns, typed_rows

Part = Literal["typed", "dead_letters"]
"""Which records of a typed topic: those that fit its schema, or the others."""

_log = EventLogger("lake.tail")


class ParsedSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A task's part of the log, and what its values are parsed by."""

    split: Split
    schema: KeptSchema
    part: Part = "typed"

    @property
    def shard(self) -> int:
        return self.split.shard


def read_parsed(
    piece: ParsedSplit,
    wanted: Wanted,
    target: pa.Schema,
    options: Mapping[str, str],
    *,
    lost: Lost | None = None,
) -> Iterator[pa.RecordBatch]:
    """The split's wanted rows with the target's columns, in the order of offsets."""
    parser = piece.schema.parser()
    split, names = piece.split, raw_columns(target.names)
    if piece.part == "dead_letters":
        for batch in read_split(split, wanted, options=options, lost=lost):
            misfits = typed_rows(batch, parser).misfits
            if misfits.num_rows:
                yield projected(misfits, target, by_name)
        return
    misfit_count = 0
    for batch in read_split(split, wanted, names, options, lost=lost):
        rows = fitting_rows(batch, parser)
        misfit_count += batch.num_rows - rows.num_rows
        if rows.num_rows:
            yield projected(rows, target, by_name)
    if misfit_count:
        _log.warning(
            "lake_misfits_left_out",
            topic=split.topic,
            shard=split.shard,
            start=split.start_offset,
            end=split.end_offset,
            count=misfit_count,
        )
