"""A stream's position: the next offset of every shard, and a mark by which the log is recognised.

A log that was truncated and has grown again may end at or beyond the stream's position; only a
record that the stream has read shows that other records have taken its offsets. So a position
contains, for every shard, the last record before it, if there was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from firnmq.lake.plans.places import make_plan, resolved
from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.lake.reading.marks import LogReplaced, Mark, find_mark, last_mark
from firnmq.lake.spark.options import ReadOptions

Offsets = dict[int, int]
"""Shard → the next offset."""

_LOOKED_BACK: Final = 16
"""How many offsets before a position are looked at for a record: the last are often those of
markers of transactions, or of what was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What Spark's checkpoint keeps of a stream."""

    topic_id: str
    offsets: Offsets
    marks: Mapping[int, Mark] = field(default_factory=dict)
    """Shard → a record before its offset. None in checkpoints from before there were any."""

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Position:
        found = {
            int(shard): Mark.of_text(str(text)) for shard, text in document.get("last", {}).items()
        }
        return cls(
            topic_id=str(document.get("topic")),
            offsets={int(shard): offset for shard, offset in document["shards"].items()},
            marks={shard: mark for shard, mark in found.items() if mark is not None},
        )

    @property
    def document(self) -> dict[str, Any]:
        """In a fixed order: Spark compares positions as text."""
        last = {str(shard): self.marks[shard].text for shard in sorted(self.marks)}
        shards = {str(shard): self.offsets[shard] for shard in sorted(self.offsets)}
        found = {"shards": shards, "topic": self.topic_id}
        return {"last": last, **found} if last else found

    def at(self, shard: int) -> int:
        """Shards that were added since are read from their beginning."""
        return self.offsets.get(shard, 0)


def advanced(
    options: ReadOptions, begin: Position | None, topic_id: str, ends: Offsets
) -> Position:
    """The position with these offsets, which are not before those of `begin`. LogReplaced if a
    shard that has moved on is not the log that it was there."""
    since = begin or Position(topic_id=topic_id, offsets={})
    moved = {shard: end for shard, end in ends.items() if end > since.at(shard)}
    if not moved:  # The same marks again: it is the same text.
        return Position(topic_id=topic_id, offsets=ends, marks=since.marks)
    with resolved(options.connection) as connection:
        starts = {
            shard: max(since.at(shard), end - _LOOKED_BACK, 0) for shard, end in moved.items()
        }
        plan = _plan(connection, starts, moved)
        found = {
            each.shard: last_mark(plan, each, starts[each.shard], moved[each.shard], connection)
            for each in plan.shards
        }
        # Not before: if the log were truncated in between, the new marks would hide it.
        if options.fails_on_loss:
            known = {shard: mark for shard, mark in since.marks.items() if shard in moved}
            _check(options.topic, known, connection)
    new = {shard: mark for shard, mark in found.items() if mark is not None}
    return Position(topic_id=topic_id, offsets=ends, marks={**since.marks, **new})


def check_log(options: ReadOptions, *positions: Position) -> None:
    """LogReplaced if the log has another record where one of the positions has noted one."""
    if not options.fails_on_loss:
        return
    with resolved(options.connection) as connection:
        for each in positions:
            _check(options.topic, each.marks, connection)


def _check(topic: str, known: Mapping[int, Mark], connection: Mapping[str, str]) -> None:
    if not known:
        return
    starts = {shard: mark.offset for shard, mark in known.items()}
    plan = _plan(connection, starts, {shard: offset + 1 for shard, offset in starts.items()})
    for each in plan.shards:
        mark = known[each.shard]
        found = find_mark(plan, each, mark.offset, connection)
        if found is not None and found != mark:
            raise LogReplaced(
                topic,
                each.shard,
                mark.offset,
                reader="the stream has noted",
                remedy="Begin with a new checkpoint, or set failOnDataLoss to false to go on from "
                "where the stream is",
            )


def _plan(connection: Mapping[str, str], starts: Offsets, ends: Offsets) -> Plan:
    wanted = Wanted(shards=tuple(sorted(starts)), start_offsets=starts, end_offsets=ends)
    return make_plan(connection, wanted)
