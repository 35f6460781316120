"""From options to tasks: what is read from the table, what from the log, and the shards' bounds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from pyspark.sql.types import StructType

from firnmq.errors import FirnError, ShardNotFound
from firnmq.lake.plans.places import make_plan
from firnmq.lake.plans.plan import OFFSET_END, Plan, ShardPlan, Split, Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.plans.wire import EARLIEST, LATEST, WireClient, with_retries
from firnmq.lake.spark.columns import RECORD, check_schema, spark_schema
from firnmq.lake.spark.filters import Limits
from firnmq.lake.spark.options import Edge, ReadOptions
from firnmq.lake.spark.tail import ParsedSplit
from firnmq.lake.tables.files.rows import HistorySplit
from firnmq.lake.tables.history import NOTHING, History, Shown, is_certainly_raw, plan_history
from firnmq.lake.typed.kept import SchemaNotKept

Piece = Split | HistorySplit | ParsedSplit

_NOTHING_YET: Final = 0


class RecordsGone(FirnError):
    """Records that are asked for by offset are neither in the log nor in the table any more."""

    def __init__(self, topic: str, shard: int, offset: int, start: int) -> None:
        super().__init__(
            f"shard {shard} of {topic!r} begins at offset {start:,}; those from {offset:,} on were "
            "removed by retention before they were read. Set failOnDataLoss to false to go on "
            "without them"
        )
        self.shard = shard
        self.offset = offset
        self.start = start


class HistoryIsTyped(FirnError):
    """Records are asked for as they are, and some are only left as rows of a typed table."""

    def __init__(self, topic: str, table: str, shard: int, offset: int, start: int) -> None:
        super().__init__(
            f"shard {shard} of {topic!r} begins at offset {start:,}; earlier ones, from {offset:,} "
            f"on, are only in the table {table}, as columns, or are its dead letters: read them "
            "with the option values=typed or values=dead_letters. Begin later by startingOffsets, "
            "or set failOnDataLoss to false or table to never, to read what is in the log alone"
        )
        self.shard = shard
        self.offset = offset
        self.start = start


class StreamAhead(FirnError):
    """A stream has reached offsets that the log does not have."""

    def __init__(self, topic: str, shard: int, offset: int, end: int) -> None:
        super().__init__(
            f"shard {shard} of {topic!r} ends at offset {end:,}, and the stream is at {offset:,}: "
            "the log has lost records since, and those that take their offsets would not be read. "
            "Begin with a new checkpoint, or set failOnDataLoss to false to go on from where the "
            "stream is"
        )
        self.shard = shard
        self.offset = offset
        self.end = end


class TopicReplaced(FirnError):
    """The topic was deleted and created again since the stream's checkpoint was written."""

    def __init__(self, topic: str, known: str, found: str) -> None:
        super().__init__(
            f"topic {topic!r} has the id {found}, the stream's checkpoint is of {known}: it was "
            "created again, and its offsets mean other records. Begin with a new checkpoint"
        )
        self.topic = topic


class Bounds(NamedTuple):
    """The readable offsets of a topic's shards at a moment."""

    topic_id: str
    starts: dict[int, int]
    """Of the log; a table may have earlier records."""
    ends: dict[int, int]


def read_bounds(options: ReadOptions, *, starts: bool = True) -> Bounds:
    """Asked of the leaders where there are any, else taken from a plan. Without `starts`, only the
    ends are asked for."""
    connection = options.connection
    if "bootstrap" not in connection:
        plan = make_plan(connection, Wanted(shards=options.wanted.shards))
        return Bounds(
            plan.topic_id,
            {each.shard: each.start_offset for each in plan.shards},
            {each.shard: each.end_offset for each in plan.shards},
        )

    def ask() -> Bounds:
        with WireClient.from_options(connection, client_id="firn-spark") as client:
            place = client.place(options.topic)
            shards = options.wanted.shards
            leaders: dict[str, list[int]] = {}
            for shard in place.leaders if shards is None else shards:
                if shard not in place.leaders:
                    raise ShardNotFound(str(shard), within=f"topic {options.topic!r}")
                leaders.setdefault(place.leaders[shard], []).append(shard)
            found: list[dict[int, int]] = []
            for when in (EARLIEST, LATEST):
                offsets: dict[int, int] = {}
                for address, led in leaders.items():
                    if when == LATEST or starts:
                        offsets |= client.list_offsets(options.topic, led, when, address)
                found.append(dict(sorted(offsets.items())))
            return Bounds(place.topic_id, *found)

    return with_retries(ask)


def known_shards(options: ReadOptions) -> set[int]:
    """The topic's shards, of which a filter may name others; an option must not."""
    if "bootstrap" not in options.connection:
        return {each.shard for each in make_plan(options.connection).shards}

    def ask() -> set[int]:
        with WireClient.from_options(options.connection, client_id="firn-spark") as client:
            return set(client.place(options.topic).leaders)

    return with_retries(ask)


def wanted_of(options: ReadOptions, limits: Limits) -> Wanted:
    """Options and filters with every offset as a number."""
    wanted = limits.wanted
    if options.wanted.shards is None and wanted.shards is not None:
        known = known_shards(options)
        there = tuple(shard for shard in wanted.shards if shard in known)
        wanted = msgspec.structs.replace(wanted, shards=there)
    starting, ending = options.starting, options.ending
    has_edges = starting.edge == "latest" or ending.edge == "earliest"
    has_edges = has_edges or any(
        isinstance(place, str)
        for place in (*starting.of_shards.values(), *ending.of_shards.values())
    )
    has_limits = limits.min_offset > 0 or limits.end_offset < OFFSET_END
    if not has_edges and not has_limits:
        return msgspec.structs.replace(
            wanted,
            start_offsets=dict(_numbers(starting.of_shards)),
            end_offsets=dict(_numbers(ending.of_shards)),
        )
    bounds = read_bounds(options)
    starts, ends = {}, {}
    for shard, end in bounds.ends.items():
        edges: dict[Edge, int] = {"earliest": _NOTHING_YET, "latest": end}
        start = _resolved(starting.at(shard), edges)
        starts[shard] = max(start, limits.min_offset)
        place = ending.at(shard)
        if place != "latest":
            ends[shard] = _resolved(place, {**edges, "earliest": bounds.starts[shard]})
        if limits.end_offset < OFFSET_END:
            ends[shard] = min(ends.get(shard, OFFSET_END), limits.end_offset)
    return msgspec.structs.replace(
        wanted,
        start_offsets={shard: start for shard, start in starts.items() if start > 0},
        end_offsets=ends,
    )


def _numbers(places: Mapping[int, int | Edge]) -> Mapping[int, int]:
    return {shard: place for shard, place in places.items() if isinstance(place, int)}


def _resolved(place: int | Edge, edges: Mapping[Edge, int]) -> int:
    return place if isinstance(place, int) else edges[place]


class Frame(NamedTuple):
    """What a topic's rows are, and their columns."""

    shown: Shown
    columns: StructType


def frame_of(options: ReadOptions) -> Frame:
    """As of now; the catalog is asked where the options leave it open."""
    if options.values == "raw":
        return Frame("raw", RECORD)
    wanted = Wanted(shards=())
    plan = make_plan(options.connection, wanted)
    if options.values == "auto" and is_certainly_raw(plan, options.connection):
        return Frame("raw", RECORD)
    history = plan_history(plan, wanted, options.connection, options.split_bytes, options.values)
    return Frame(history.shown, _columns(history))


def _columns(history: History) -> StructType:
    return RECORD if history.shown == "raw" else spark_schema(history.columns)


def earliest_of(options: ReadOptions, bounds: Bounds) -> dict[int, int]:
    """Where the earliest records are if those in the topic's table count."""
    plan = make_plan(options.connection, Wanted(shards=options.wanted.shards))
    # A table can hide records only from readers of raw records.
    wanted = options.wanted if options.values == "raw" else Wanted(shards=())
    history = plan_history(plan, wanted, options.connection, options.split_bytes, options.values)
    _check_hidden(options, plan, history)
    return {
        shard: 0 if history.ends.get(shard) else start for shard, start in bounds.starts.items()
    }


def plan_pieces(
    options: ReadOptions,
    wanted: Wanted,
    *,
    schema: StructType | None = None,
    demanded: Mapping[int, int] | None = None,
    topic_id: str | None = None,
) -> list[Piece]:
    """What tasks have to read: every wanted record once, from the table or from the log.

    `schema` are the columns that rows must have. `demanded` are offsets from which on nothing may
    be missing. The topic must have the id, if one is given.
    """
    plan = make_plan(options.connection, wanted)
    if topic_id is not None and plan.topic_id != topic_id:
        raise TopicReplaced(options.topic, topic_id, plan.topic_id)
    history = NOTHING
    if options.uses_table:
        history = plan_history(
            plan, wanted, options.connection, options.split_bytes, options.values
        )
    if schema is not None:
        check_schema(schema, _columns(history))
    _check_hidden(options, plan, history)
    _check_gone(options, plan, history, wanted, demanded or {})
    tail = split_plan(plan, _behind(wanted, plan, history), options.split_bytes)
    if history.shown == "raw":
        return [*history.splits, *tail]
    if not tail:
        return [*history.splits]
    if history.schema is None:
        raise SchemaNotKept(history.table)
    parsed = [ParsedSplit(split=each, schema=history.schema, part=history.shown) for each in tail]
    return [*history.splits, *parsed]


def _behind(wanted: Wanted, plan: Plan, history: History) -> Wanted:
    """The part of the log that is wanted: from the table's end on."""
    starts = dict(wanted.start_offsets)
    for each in plan.shards:
        starts[each.shard] = max(starts.get(each.shard, 0), history.ends.get(each.shard, 0))
    return msgspec.structs.replace(wanted, start_offsets=starts)


def _check_hidden(options: ReadOptions, plan: Plan, history: History) -> None:
    for each in plan.shards:
        offset = history.hidden.get(each.shard)
        if offset is None:
            continue
        error = HistoryIsTyped(plan.topic, history.table, each.shard, offset, each.start_offset)
        if options.fails_on_loss:
            raise error
        warnings.warn(str(error), stacklevel=2)


def _check_gone(
    options: ReadOptions,
    plan: Plan,
    history: History,
    wanted: Wanted,
    demanded: Mapping[int, int],
) -> None:
    for each in plan.shards:
        offset = demanded.get(each.shard)
        if offset is None or not _is_gone(each, offset, history, wanted):
            continue
        error = RecordsGone(plan.topic, each.shard, offset, each.start_offset)
        if options.fails_on_loss:
            raise error
        warnings.warn(str(error), stacklevel=2)


def _is_gone(shard: ShardPlan, offset: int, history: History, wanted: Wanted) -> bool:
    """Whether offsets from this one on are in neither place."""
    covered = max(offset, history.ends.get(shard.shard, 0))
    end = wanted.end_offsets.get(shard.shard, OFFSET_END)
    return covered < min(shard.start_offset, end)
