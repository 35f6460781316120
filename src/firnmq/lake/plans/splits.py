"""From a plan to splits: what each task reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from firnmq.errors import InvalidArgument
from firnmq.lake.plans.plan import OFFSET_END, Plan, SegmentPlan, ShardPlan, Split, Wanted

TARGET_BYTES: Final = 96 * 1024 * 1024
"""Enough that a task's own 30 to 40 ms do not matter, and that all cores have something to do."""


def split_plan(
    plan: Plan, wanted: Wanted | None = None, target_bytes: int = TARGET_BYTES
) -> list[Split]:
    """Tasks of about `target_bytes` each, one shard in each, in the order of shards and offsets.

    Together they hold every wanted offset that the plan has, each exactly once. Large segments are
    divided where the plan has points, small neighbours are put together.
    """
    if target_bytes < 1:
        raise InvalidArgument("target_bytes", f"must be above 0, not {target_bytes}")
    wanted = wanted or Wanted()
    return [
        split
        for shard in plan.shards
        if wanted.shards is None or shard.shard in wanted.shards
        for split in _shard_splits(plan, shard, wanted, target_bytes)
    ]


def _shard_splits(plan: Plan, shard: ShardPlan, wanted: Wanted, target: int) -> Iterator[Split]:
    start = max(shard.start_offset, wanted.start_offsets.get(shard.shard, 0))
    end = min(shard.end_offset, wanted.end_offsets.get(shard.shard, OFFSET_END))
    group: list[SegmentPlan] = []
    size = 0
    for segment in shard.segments:
        for part in _parts(segment, target):
            if part.end_offset <= start or part.base_offset >= end:
                continue
            if group and size + part.length > target:
                yield _split(plan, shard, group, start, end)
                group, size = [], 0
            group.append(part)
            size += part.length
    if group:
        yield _split(plan, shard, group, start, end)


def _parts(segment: SegmentPlan, target: int) -> Iterator[SegmentPlan]:
    """The segment in pieces of at most about the target, as far as its points allow."""
    begin = (segment.base_offset, segment.position)
    stop = (segment.end_offset, segment.position + segment.length)
    before: tuple[int, int] | None = None
    for point in (*segment.points, stop):
        if before is not None and point[1] - begin[1] > target and before > begin:
            yield _part(segment, begin, before)
            begin = before
        before = point
    yield _part(segment, begin, stop)


def _part(segment: SegmentPlan, begin: tuple[int, int], stop: tuple[int, int]) -> SegmentPlan:
    length = stop[1] - begin[1]
    is_whole = length == segment.length
    return msgspec.structs.replace(
        segment,
        base_offset=begin[0],
        end_offset=min(stop[0], segment.end_offset),
        position=begin[1],
        length=length,
        crc=segment.crc if is_whole else None,
        points=(),
    )


def _split(plan: Plan, shard: ShardPlan, group: list[SegmentPlan], start: int, end: int) -> Split:
    first = max(group[0].base_offset, start)
    last = min(group[-1].end_offset, end)
    return _of_offsets(plan, shard, first, last, tuple(group))


def leader_split(plan: Plan, shard: ShardPlan, start: int, end: int) -> Split:
    """The split of a plan without segments that may still have records."""
    return _of_offsets(plan, shard, start, end, ())


def _of_offsets(
    plan: Plan, shard: ShardPlan, first: int, last: int, segments: tuple[SegmentPlan, ...]
) -> Split:
    return Split(
        topic=plan.topic,
        topic_id=plan.topic_id,
        shard=shard.shard,
        start_offset=first,
        end_offset=last,
        segments=segments,
        leader=shard.leader,
        machine=plan.machine,
        store=plan.store,
        options=plan.options,
        holes=tuple(hole for hole in shard.holes if first <= hole < last),
        dead_keys=tuple(each for each in shard.dead_keys if each[1] > first),
        aborted=tuple(
            each
            for each in shard.aborted
            if each.marker_offset >= first and each.first_offset < last
        ),
    )
