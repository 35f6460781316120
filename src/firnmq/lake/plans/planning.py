"""From a shard's survey to its plan: which segments may hold what is wanted, and where they are.

What an index rules out is left out, and what it says about where to begin is used; whatever it
cannot answer stays in, since readers drop what is not wanted anyway. Segments that are only in the
object store are asked about at the same time, for each answer is a round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from firnmq.adapter import Topic
from firnmq.engines.api import ReadEngine, Survey, SurveyedSegment
from firnmq.engines.catalog.segments import SegmentGone
from firnmq.errors import InvalidArgument, NoObjectStore, ShardNotFound, StoreError
from firnmq.index import Point, SegmentIndex
from firnmq.lake.plans.machine import file_id_of, machine_id
from firnmq.lake.plans.plan import (
    OFFSET_END,
    AbortedRange,
    ObjectPlace,
    Plan,
    SegmentPlan,
    ShardPlan,
    StorePlace,
    TablePlace,
    Wanted,
)

NAMESPACE: Final = "topics"

PART_BYTES: Final = 32 * 1024 * 1024
"""About how far apart the points are at which a segment may be divided."""
_COLD_AT_ONCE: Final = 16

A = TypeVar("A")
B = TypeVar("B")


def plan_topic(
    topic: Topic,
    engine: ReadEngine,
    wanted: Wanted,
    *,
    cluster: str,
    leader: str | None,
    made_ms: int,
    store: StorePlace | None = None,
    table: TablePlace | None = None,
    directory: str = "",
) -> Plan:
    """What there is to read of a topic that an engine of this process keeps. Blocks. `directory` is
    the data directory's id: numbers of its deletions mean nothing to another one."""
    shards = range(topic.shard_count) if wanted.shards is None else wanted.shards
    for shard in shards:
        if not 0 <= shard < topic.shard_count:
            raise ShardNotFound(str(shard), within=f"topic {topic.name!r}")
    return Plan(
        cluster=cluster,
        topic=topic.name,
        topic_id=topic.topic_id,
        made_ms=made_ms,
        options=topic.config.options(),
        machine=machine_id(),
        store=store,
        table=table,
        shards=tuple(
            _plan_shard(topic, shard, engine, wanted, leader, directory) for shard in shards
        ),
    )


def merged(own: Plan, parts: Iterable[Plan]) -> Plan:
    """The plans of several nodes as one; `own` is of the node that is asked. Files of nodes on
    other machines are left out: their bytes are had from the object store or their node."""
    shards: dict[int, ShardPlan] = {}
    for part in parts:
        for each in part.shards:
            shards[each.shard] = each if part.machine == own.machine else _without_files(each)
    return msgspec.structs.replace(own, shards=tuple(shards[number] for number in sorted(shards)))


def _without_files(plan: ShardPlan) -> ShardPlan:
    segments = (
        msgspec.structs.replace(each, path=None, file_id=None, file_length=None)
        for each in plan.segments
    )
    return msgspec.structs.replace(plan, segments=tuple(segments))


def _plan_shard(
    topic: Topic, shard: int, engine: ReadEngine, wanted: Wanted, leader: str | None, directory: str
) -> ShardPlan:
    name, durable_end = topic.shard_name(shard), OFFSET_END
    if wanted.is_durable:
        durable_end = engine.settle(name)
        end = min(durable_end, wanted.end_offsets.get(shard, OFFSET_END))
        wanted = msgspec.structs.replace(wanted, end_offsets={**wanted.end_offsets, shard: end})
    begun = engine.survey(name, partial(begin_plan, shard, wanted=wanted))
    plan, number = finish_plan(begun, leader), begun.survey.retired
    return msgspec.structs.replace(
        plan,
        end_offset=min(plan.end_offset, durable_end),
        retired=None if number is None else retired_text(directory, number),
    )


def retired_text(directory: str, number: int) -> str:
    """How a node tells which deletions it keeps for a shard's table."""
    return f"{directory}:{number}"


def retired_number(text: str, directory: str) -> int:
    """What it meant; 0, before every deletion, if another directory has told it."""
    name, _, number = text.rpartition(":")
    if not number.isascii() or not number.isdigit():
        raise InvalidArgument("applied", f"{text!r} is not what a plan has as `retired`")
    return int(number) if name == directory else 0


def table_name(topic: str) -> str:
    """What a topic's table is called in the catalog: dots would be namespaces there."""
    return f"{NAMESPACE}.{topic.replace('.', '_')}"


class BegunPlan(NamedTuple):
    """A shard's plan but for segments that are only in the object store."""

    shard: int
    survey: Survey
    judge: _Judge
    inside: list[SurveyedSegment]
    """Those that are not ruled out by their description."""
    near: dict[int, SegmentPlan | None]
    """What was made of those that are here, by their numbers."""


def begin_plan(shard: int, survey: Survey, wanted: Wanted) -> BegunPlan:
    """Asks the indexes that are here. It must be quick: an index may be dropped while it is
    asked, and then all are asked again."""
    start = max(survey.start_offset, wanted.start_offsets.get(shard, 0))
    end = min(survey.stable_offset, wanted.end_offsets.get(shard, OFFSET_END))
    config = survey.spec.config
    judge = _Judge(wanted, start, end, has_keys=config.index_key, has_tags=config.index_tag)
    inside = [
        each
        for each in survey.segments
        if each.length > 0
        and each.meta.base_offset < end
        and each.end_offset > start
        and not judge.is_too_old(each)
    ]
    near = {each.meta.seq: judge.plan(each) for each in inside if each.meta.is_local}
    return BegunPlan(shard, survey, judge, inside, near)


def finish_plan(begun: BegunPlan, leader: str | None) -> ShardPlan:
    """Asks the indexes in the object store, which never change, and puts all together. Blocks."""
    survey, judged = begun.survey, dict(begun.near)
    far = [each for each in begun.inside if not each.meta.is_local]
    if far:
        plans = _at_once(begun.judge.plan, far)
        judged.update((each.meta.seq, plan) for each, plan in zip(far, plans, strict=True))
    found = [plan for each in begun.inside if (plan := judged[each.meta.seq]) is not None]
    overlapping = (found[0].base_offset, found[-1].end_offset) if found else (0, 0)
    return ShardPlan(
        shard=begun.shard,
        start_offset=survey.start_offset,
        end_offset=survey.stable_offset,
        leader=leader,
        segments=tuple(found),
        holes=tuple(sorted(survey.holes)),
        dead_keys=tuple(sorted(survey.dead_keys.items())),
        aborted=tuple(
            AbortedRange(
                producer_id=each.producer_id,
                first_offset=each.first_offset,
                marker_offset=each.last_offset,
            )
            for each in survey.aborted
            if each.last_offset >= overlapping[0] and each.first_offset < overlapping[1]
        ),
    )


class _Judge:
    """Asks a segment's indexes about what is wanted."""

    def __init__(
        self, wanted: Wanted, start: int, end: int, *, has_keys: bool, has_tags: bool
    ) -> None:
        self._start = start
        self._end = end
        self._earliest_ms = wanted.min_timestamp_ms
        self._keys = wanted.keys if has_keys else None
        self._tags = wanted.tags if has_tags else None

    def is_too_old(self, segment: SurveyedSegment) -> bool:
        """Whether every record is older than what is wanted."""
        is_known = segment.meta.is_sealed
        earliest = self._earliest_ms
        return is_known and earliest is not None and segment.meta.max_timestamp < earliest

    def plan(self, segment: SurveyedSegment) -> SegmentPlan | None:
        """The part of the segment that may hold something wanted; None if there is none."""
        whole = _whole(segment, self._start, self._end)
        try:
            return self._narrowed(whole, segment.index)
        except (StoreError, NoObjectStore):
            return whole  # Its index cannot be asked now; it may hold anything.
        except SegmentGone:
            if segment.meta.is_local:
                raise  # The caller surveys the log again.
            return whole  # Retention has just removed it; readers will notice.

    def _narrowed(self, plan: SegmentPlan, index: SegmentIndex) -> SegmentPlan | None:
        begin = Point(plan.base_offset, plan.position)
        end = plan.end_offset
        if self._keys is not None:
            hits = [hit.offset for key in self._keys if (hit := index.newest_of_key(key))]
            if max(hits, default=-1) < self._start:
                return None
            end = min(end, max(hits) + 1)
        if self._tags is not None:
            tagged = [point for tag in self._tags if (point := _first_tagged(index, tag, self))]
            if not tagged:
                return None
            begin = max(begin, min(tagged))
        if self._start > begin.offset:
            begin = max(begin, index.floor_offset(self._start) or begin)
        if self._earliest_ms is not None:
            begin = max(begin, index.floor_time(self._earliest_ms) or begin)
        if begin.offset >= end:
            return None
        is_whole = begin.position == plan.position
        return msgspec.structs.replace(
            plan,
            base_offset=begin.offset,
            end_offset=end,
            position=begin.position,
            length=plan.length - (begin.position - plan.position),
            crc=plan.crc if is_whole else None,
            points=_points(index, plan, begin, end),
        )

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._end


def _first_tagged(index: SegmentIndex, tag: str, judge: _Judge) -> Point | None:
    """The first batch that has a record with the tag from the start on, and begins before the
    end."""
    for hit in index.tagged(tag.encode("utf-8", "surrogateescape"), judge.start):
        if hit.base_offset >= judge.end:
            return None
        if hit.last_offset >= judge.start:
            return Point(hit.base_offset, hit.position)
    return None


def _whole(segment: SurveyedSegment, start: int, end: int) -> SegmentPlan:
    meta = segment.meta
    copy = meta.tier if meta.tier is not None and meta.tier.is_done else None
    file_id = None if segment.path is None else file_id_of(segment.path)
    return SegmentPlan(
        base_offset=meta.base_offset,
        end_offset=min(segment.end_offset, end),
        is_sealed=meta.is_sealed,
        length=segment.length,
        crc=meta.crc if meta.is_sealed else None,
        max_timestamp_ms=meta.max_timestamp,
        has_gaps=meta.has_gaps,
        path=None if file_id is None else segment.path,
        file_id=file_id,
        file_length=meta.length if meta.is_sealed and file_id is not None else None,
        object=None
        if copy is None
        else ObjectPlace(
            key=copy.key,
            index_length=copy.index_length,
            index_head_length=copy.index_head_length,
        ),
    )


def _points(
    index: SegmentIndex, plan: SegmentPlan, begin: Point, end: int
) -> tuple[tuple[int, int], ...]:
    """Batches about every PART_BYTES, by the offsets at which they are to be expected."""
    stop = plan.position + plan.length
    count = (stop - begin.position) // PART_BYTES
    if count < 2:
        return ()
    found = []
    last = begin
    for number in range(1, count):
        expected = begin.offset + (end - begin.offset) * number // count
        point = index.floor_offset(expected)
        if point is not None and point > last and begin.position < point.position < stop:
            found.append((point.offset, point.position))
            last = point
    return tuple(found)


def _at_once(answer: Callable[[A], B], questions: Sequence[A]) -> Iterable[B]:
    with ThreadPoolExecutor(_COLD_AT_ONCE, thread_name_prefix="firn-plan") as threads:
        return list(threads.map(answer, questions))
