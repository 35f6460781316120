"""From the log into the table: rounds of plan, conversion and commit, each wholly or not at all.

Nothing about a sync is remembered but in the table. A round reads how far the table goes, converts
what comes after, and commits it where the table still goes as far. So a sync may be killed
anywhere, started twice, or repeated: every (shard, offset) gets into the table once. Before that,
it takes out what was deleted since it got there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa

from firnmq.errors import FirnError, InvalidArgument, StoreUnavailable
from firnmq.eventlog import EventLogger
from firnmq.lake.jobs.convert import Conversion, Target, Task, Typing
from firnmq.lake.plans.places import PlanNotDurable
from firnmq.lake.plans.plan import Plan, ShardPlan, Split, Wanted
from firnmq.lake.plans.splits import leader_split, split_plan
from firnmq.lake.plans.wire import NodeUnreachable
from firnmq.lake.reading.marks import LogReplaced, find_mark
from firnmq.lake.reading.schema import RAW
from firnmq.lake.tables.catalogs.catalog import DEAD_LETTERS, CatalogFailed, OpenCatalog
from firnmq.lake.tables.deletions import Deleter
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten
from firnmq.lake.tables.paired_commit import commit_both, finish_pending
from firnmq.lake.tables.table import Advance, CommitGivenUp, TopicTable, find_table, make_table

if TYPE_CHECKING:
    from firnmq.lake.typed import KeptSchema

_MIB: Final = 1024 * 1024
_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 60.0

_log = EventLogger("lake.sync")


class ConversionFailed(FirnError):
    """A task failed in all of Spark's attempts. Nothing was committed."""


class LogBehindTable(FirnError):
    """The table has offsets beyond the log's end: the log was truncated, or restored from an older
    copy. New records would get offsets that the table already has, and would never be converted."""

    def __init__(self, topic: str, shard: int, *, log_end: int, table_end: int) -> None:
        super().__init__(
            f"shard {shard} of {topic!r} ends at offset {log_end:,}, its table at {table_end:,}: "
            "the log has lost records that the table has, and what comes next would be missing "
            "there. Rename the table and sync again, or copy the topic to another one"
        )
        self.shard = shard
        self.log_end = log_end
        self.table_end = table_end


class Source(Protocol):
    """Makes plans and receives reports of progress: a node, a bucket, a data directory."""

    def plan(self, wanted: Wanted) -> Plan: ...

    def report(
        self, topic_id: str, ends: Mapping[int, int], applied: Mapping[int, str] | None = None
    ) -> None:
        """Tells that the table has everything below these offsets, and of some shards which
        deletions are applied there: what the plan had as `retired`. May be told again."""
        ...


class Runner(Protocol):
    """Runs tasks, each at least once."""

    def run(self, tasks: Sequence[Task]) -> list[Conversion]: ...

    def rewrite(self, work: Sequence[Rewrite]) -> list[Rewritten]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    commit_bytes: int = 1024 * _MIB
    """A round takes up to this many bytes of log; following, it begins when there are as many."""
    commit_interval_s: float = 60.0
    """Following, a round begins when the last was this long ago and there is something."""
    poll_s: float = 2.0
    """Following: the poll interval."""
    split_bytes: int = 96 * _MIB
    """A task's part of the log, about."""
    is_sealed_only: bool = False
    """Leave active segments alone: fewer and larger files, later."""
    partition: str = "day"
    """Of a table that is made: `day` or `hour` of the timestamp."""
    schema_document: str | None = None
    """Typed mode: a JSON Schema or an Avro schema."""
    schema_kind: str = "json"
    schema_writers: Mapping[int, str] = field(default_factory=dict)
    """For avro-confluent: the schemas that values were written with, by number."""

    def __post_init__(self) -> None:
        if self.partition not in ("day", "hour"):
            raise InvalidArgument("partition", f"{self.partition!r} is neither day nor hour")
        for name in ("commit_bytes", "split_bytes", "poll_s", "commit_interval_s"):
            if getattr(self, name) <= 0:
                raise InvalidArgument(name, f"{getattr(self, name)} is not more than 0")

    @property
    def mode(self) -> str:
        return "raw" if self.schema_document is None else "typed"

    def kept_schema(self) -> KeptSchema | None:
        """What a typed table keeps for its readers; SchemaRefused where it is no good."""
        if self.schema_document is None:
            return None
        from firnmq.lake.typed import KeptSchema

        return KeptSchema.of(self.schema_document, self.schema_kind, self.schema_writers)

    def with_schema_of(self, table: TopicTable | None) -> SyncSettings:
        """The settings with the table's schema, if the sync was given none."""
        if table is None or self.schema_document is not None:
            return self
        from firnmq.lake.typed import KeptSchema

        kept = KeptSchema.found(table.properties)
        return self if kept is None else replace(self, **kept.settings())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDone:
    """What one round did. A round that another sync outran adds nothing, and is no error."""

    row_count: int = 0
    dead_letter_count: int = 0
    file_count: int = 0
    file_bytes: int = 0
    log_bytes: int = 0
    seconds: float = 0.0
    outrun_shards: tuple[int, ...] = ()
    missing_count: int = 0
    """Offsets that retention had dropped before they were in the table."""
    deleted_count: int = 0
    """Rows taken out of the tables, since their records were deleted."""


@dataclass(slots=True, kw_only=True)
class SyncDone:
    """All rounds together."""

    rounds: int = 0
    row_count: int = 0
    dead_letter_count: int = 0
    file_count: int = 0
    file_bytes: int = 0
    log_bytes: int = 0
    missing_count: int = 0
    deleted_count: int = 0
    seconds: float = 0.0
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, done: RoundDone) -> None:
        self.rounds += 1
        self.row_count += done.row_count
        self.dead_letter_count += done.dead_letter_count
        self.file_count += done.file_count
        self.file_bytes += done.file_bytes
        self.log_bytes += done.log_bytes
        self.missing_count += done.missing_count
        self.deleted_count += done.deleted_count
        self.seconds += done.seconds


class TopicSync:
    """Brings one topic's table up to date. One thread uses it."""

    def __init__(
        self,
        *,
        source: Source,
        runner: Runner,
        options: Mapping[str, str],
        settings: SyncSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._runner = runner
        self._options = dict(options)
        self._settings = settings or SyncSettings()
        self._clock = clock
        self._catalog: OpenCatalog | None = None
        self._table: TopicTable | None = None
        self._dead: TopicTable | None = None
        self._deleters: list[Deleter] = []
        """Of both tables, if there are two."""
        self._told: dict[int, tuple[int, str]] = {}
        """Shard → the end and the deletions of the last report."""
        self._announced: set[int] = set()
        """Shards for which the node was told that there is a table."""

    @property
    def table(self) -> TopicTable:
        assert self._table is not None
        return self._table

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def run(self, watch: Callable[[RoundDone], None] | None = None) -> SyncDone:
        """Syncs until the table has all records that existed at the start."""
        total = SyncDone()
        goal: dict[int, int] | None = None
        while True:
            plan = self._next_plan()
            if goal is None:
                goal = {shard.shard: shard.end_offset for shard in plan.shards}
            done = self._work(plan)
            if done is not None:
                total.add(done)
                if watch is not None:
                    watch(done)
            total.ends = self.table.ends()
            if done is None or all(total.ends.get(each, 0) >= end for each, end in goal.items()):
                return total

    def follow(self, stop: Event, watch: Callable[[RoundDone], None] | None = None) -> SyncDone:
        """Syncs until stopped: a round whenever there are enough bytes, or the interval is over.

        Temporary failures (a node that restarts, a store that does not answer) are retried.
        """
        total, last_s, failures = SyncDone(), self._clock(), 0
        while not stop.is_set():
            try:
                plan = self._next_plan()
                waiting = waiting_bytes(plan, self.table.ends())
                is_due = self._clock() - last_s >= self._settings.commit_interval_s
                if waiting >= self._settings.commit_bytes or (
                    is_due and (waiting or self._has_outstanding(plan))
                ):
                    done = self._work(plan)
                    last_s = self._clock()
                    if done is not None:
                        total.add(done)
                        if watch is not None:
                            watch(done)
                failures = 0
                wait_s = (
                    0.0 if waiting >= 2 * self._settings.commit_bytes else self._settings.poll_s
                )
            except (
                *(NodeUnreachable, StoreUnavailable, CatalogFailed),
                *(CommitGivenUp, ConversionFailed, PlanNotDurable),
            ) as error:
                if not self._may_pass(error):
                    raise
                failures += 1
                wait_s = min(_RETRY_S * 2**failures, _RETRY_S_MAX)
                _log.warning("sync_waits", reason=str(error), wait_s=wait_s)
            stop.wait(wait_s)
        if self._table is not None:
            total.ends = self._table.ends()
        return total

    def _may_pass(self, error: FirnError) -> bool:
        if isinstance(error, PlanNotDurable):
            return self._table is not None  # The HTTP listener was there before, and may return.
        return not isinstance(error, CatalogFailed) or error.is_passing

    def _next_plan(self) -> Plan:
        """A plan of the records after the table's end. Opens or creates the table first."""
        if self._table is None:
            self._open(self._source.plan(Wanted(shards=(), is_durable=True)))
        table = self.table.reload()
        if self._dead is not None:
            finish_pending(table, self._dead.reload())
        plan = self._checked_plan()
        unknown = {shard.shard for shard in plan.shards if shard.leader and shard.retired is None}
        if new := unknown - self._announced:
            # From now on the node keeps deletions for the table. What was deleted before counts in
            # a plan that is made after this.
            self._announced |= new
            ends = table.ends()
            self._source.report(plan.topic_id, {shard: ends.get(shard, 0) for shard in new})
            plan = self._checked_plan()
        if self._settings.is_sealed_only:
            plan = sealed_part(plan)
        return plan

    def _checked_plan(self) -> Plan:
        table = self.table
        starts = table.ends() | {shard: mark.offset for shard, mark in table.marks().items()}
        plan = self._source.plan(Wanted(start_offsets=starts, is_durable=True))
        table.check_topic(plan.topic, plan.topic_id)
        _check_reached(plan, table.ends())
        return plan

    def _open(self, plan: Plan) -> None:
        if plan.table is None:
            raise InvalidArgument(
                "catalog", "the plan names no table; give the options catalog and warehouse"
            )
        if self._catalog is None:
            self._catalog = OpenCatalog(plan.table, self._options)
        names: dict[str, Any] = {
            "topic": plan.topic,
            "topic_id": plan.topic_id,
            "cluster": plan.cluster,
        }
        known = find_table(self._catalog, plan.topic, plan.topic_id)
        settings = self._settings = self._settings.with_schema_of(known)
        schema, kept = self._row_schema(), settings.kept_schema()
        table = make_table(
            self._catalog,
            **names,
            schema=schema,
            partition=settings.partition,
            mode=settings.mode,
            properties={} if kept is None else kept.properties(),
        )
        if table.mode != settings.mode:
            raise InvalidArgument(
                "mode",
                f"table {table.name} is {table.mode}, and this sync would be {settings.mode}; "
                "a table keeps its mode",
            )
        if kept is not None:
            from firnmq.lake.tables.evolve import add_columns
            from firnmq.lake.typed import DEAD_LETTERS as DEAD_LETTER_ROWS

            add_columns(table, schema, kept)
            self._dead = make_table(
                self._catalog,
                **names,
                schema=DEAD_LETTER_ROWS,
                partition=table.partition,
                mode="dead_letters",
                namespace=DEAD_LETTERS,
            )
        self._table = table
        tables = [each for each in (table, self._dead) if each is not None]
        self._deleters = [Deleter(each, self._runner.rewrite) for each in tables]
        if table.ends():
            # An earlier sync may have crashed between its last commit and the report.
            self._source.report(plan.topic_id, table.ends())

    def _row_schema(self) -> pa.Schema:
        kept = self._settings.kept_schema()
        if kept is None:
            return RAW
        from firnmq.lake.typed import typed_schema

        return typed_schema(kept.parser())

    def _work(self, plan: Plan) -> RoundDone | None:
        """Applies deletions, then adds one commit's worth of records; None if there is nothing to
        do."""
        began_s, deleted_count = self._clock(), 0
        failure: FirnError | None = None
        try:
            for each in self._deleters:
                deleted_count += each.apply(plan.shards).row_count
        except FirnError as error:  # A failed deletion must not block new records.
            failure = error
        done = self._round(plan)
        self._report(plan, has_moved=done is not None)
        if failure is not None:
            raise failure
        if done is None and not deleted_count:
            return None
        seconds = self._clock() - began_s
        return replace(done or RoundDone(), deleted_count=deleted_count, seconds=seconds)

    def _has_outstanding(self, plan: Plan) -> bool:
        return any(each.has_outstanding(plan.shards) for each in self._deleters)

    def _report(self, plan: Plan, *, has_moved: bool) -> None:
        """Reports the table's ends, and the shards whose deletions are all applied, if they have
        changed since the last report."""
        ends = self.table.ends()
        applied = {
            shard.shard: shard.retired
            for shard in plan.shards
            if shard.retired is not None
            and shard.shard in ends
            and all(each.is_applied(shard) for each in self._deleters)
        }
        told = {shard: (ends[shard], text) for shard, text in applied.items()}
        if has_moved or told.items() - self._told.items():
            self._source.report(plan.topic_id, ends, applied)
            self._told |= told

    def _round(self, plan: Plan) -> RoundDone | None:
        """One commit's worth; None if there is nothing to add."""
        base = self.table.ends()
        chosen = self._chosen(plan, base)
        ends = {shard: end for shard, (_, end) in chosen.items()}
        if not ends:
            return None
        self._check_marks(plan, ends)
        splits = [split for each, _ in chosen.values() for split in each]
        conversions = self._runner.run(self._tasks(splits)) if splits else []
        advance = Advance(
            base=base,
            ends=ends,
            files=[file for each in conversions for file in each.files],
            marks=_last_marks(conversions),
            summary={"firn.mode": self.table.mode},
            applied=self._deleters[0].noted(plan.shards, ends),
        )
        dead_count = 0
        if self._dead is None:
            advanced = self.table.advance(advance)
        else:
            letters = replace(
                advance,
                files=[file for each in conversions for file in each.dead_letters],
                applied=self._deleters[1].noted(plan.shards, ends),
            )
            advanced, dead_count = commit_both(self.table, self._dead, advance, letters)
        done = RoundDone(
            row_count=advanced.row_count,
            dead_letter_count=dead_count,
            file_count=advanced.file_count,
            file_bytes=advanced.file_bytes,
            log_bytes=sum(split.length for split in splits if split.shard in advanced.shards),
            outrun_shards=tuple(shard for shard in ends if shard not in advanced.shards),
            missing_count=_missing_count(plan, base, advanced.shards)
            + sum(each.missing_count for each in conversions if each.shard in advanced.shards),
        )
        _note(plan.topic, done)
        return done

    def _check_marks(self, plan: Plan, shards: Collection[int]) -> None:
        """LogReplaced if one of the shards has not the record that the table has last of it."""
        marks = self.table.marks()
        for each in plan.shards:
            known = marks.get(each.shard)
            if each.shard not in shards or known is None or each.leader is None:
                continue
            found = find_mark(plan, each, known.offset, self._options)
            if found is not None and found != known:
                raise LogReplaced(
                    plan.topic,
                    each.shard,
                    known.offset,
                    reader="its table",
                    remedy="Rename the table and sync again, or copy the topic to another one",
                )

    def _chosen(self, plan: Plan, base: Mapping[int, int]) -> dict[int, tuple[list[Split], int]]:
        """For each shard that has something: splits from where the table ends, and their end.

        Shards take turns until there is enough for a commit; the first split always fits.
        """
        settings = self._settings
        target = min(settings.split_bytes, settings.commit_bytes)
        queues: dict[int, list[Split]] = {shard.shard: [] for shard in plan.shards}
        for split in split_plan(plan, Wanted(start_offsets=dict(base)), target):
            queues[split.shard].append(split)
        for each in plan.shards:
            if not each.segments and each.leader is not None:
                queues[each.shard] = _asked_of_leader(plan, each, base.get(each.shard, 0))
        plan_ends = {shard.shard: shard.end_offset for shard in plan.shards}
        taken: dict[int, list[Split]] = {shard: [] for shard in queues}
        total, turn = 0, 0
        while any(len(queue) > turn for queue in queues.values()):
            for shard, queue in queues.items():
                is_next = len(queue) > turn == len(taken[shard])
                if is_next and (not total or total + queue[turn].length <= settings.commit_bytes):
                    taken[shard].append(queue[turn])
                    total += queue[turn].length
            turn += 1
        chosen: dict[int, tuple[list[Split], int]] = {}
        for shard, queue in queues.items():
            count = len(taken[shard])
            end = plan_ends[shard] if count == len(queue) else _end_of(taken[shard])
            if end > base.get(shard, 0):
                chosen[shard] = (taken[shard], end)
        return chosen

    def _tasks(self, splits: Sequence[Split]) -> list[Task]:
        """The longest first, so that none of them is alone in the end."""
        table = self.table
        target = _target(table, self._row_schema())
        typing = None
        if self._dead is not None:
            from firnmq.lake.typed import DEAD_LETTERS as DEAD_LETTER_ROWS

            assert self._settings.schema_document is not None
            typing = Typing(
                document=self._settings.schema_document,
                kind=self._settings.schema_kind,
                writers=dict(self._settings.schema_writers),
                dead_letters=_target(self._dead, DEAD_LETTER_ROWS),
            )
        return [
            Task(split=split, target=target, options=self._options, typing=typing)
            for split in sorted(splits, key=lambda each: each.length, reverse=True)
        ]


def _asked_of_leader(plan: Plan, shard: ShardPlan, end: int) -> list[Split]:
    """For a plan that knows no segments, though there may be records."""
    start = max(end, shard.start_offset)
    if start >= shard.end_offset:
        return []
    return [leader_split(plan, shard, start, shard.end_offset)]


def _last_marks(conversions: Sequence[Conversion]) -> dict[int, str]:
    """Of each shard, that of the last split that had a record."""
    return {
        each.shard: each.mark.text
        for each in sorted(conversions, key=lambda each: each.start_offset)
        if each.mark is not None
    }


def _target(table: TopicTable, schema: pa.Schema) -> Target:
    return Target(
        location=table.location,
        partition=table.partition,
        schema=table.numbered(schema).serialize().to_pybytes(),
    )


def _end_of(splits: Sequence[Split]) -> int:
    return splits[-1].end_offset if splits else 0


def _missing_count(plan: Plan, base: Mapping[int, int], shards: Sequence[int]) -> int:
    return sum(
        max(0, shard.start_offset - base[shard.shard])
        for shard in plan.shards
        if shard.shard in shards and shard.shard in base
    )


def _note(topic: str, done: RoundDone) -> None:
    if done.missing_count:
        _log.warning(
            "lake_offsets_missing", topic=topic, count=done.missing_count, hint="lake.required=true"
        )
    if done.outrun_shards:
        _log.info("sync_outrun", topic=topic, shards=len(done.outrun_shards))
    _log.info(
        "lake_committed",
        topic=topic,
        rows=done.row_count,
        files=done.file_count,
        bytes=done.file_bytes,
    )


def _check_reached(plan: Plan, ends: Mapping[int, int]) -> None:
    """LogBehindTable if a shard is shorter than the table. A bucket may well be behind."""
    for shard in plan.shards:
        end = ends.get(shard.shard, 0)
        if shard.leader is not None and shard.end_offset < end:
            raise LogBehindTable(plan.topic, shard.shard, log_end=shard.end_offset, table_end=end)


def sealed_part(plan: Plan) -> Plan:
    """The plan without active segments and anything after them."""
    shards = []
    for shard in plan.shards:
        sealed = tuple(segment for segment in shard.segments if segment.is_sealed)
        end = max((segment.end_offset for segment in sealed), default=shard.start_offset)
        shards.append(
            msgspec.structs.replace(shard, segments=sealed, end_offset=min(end, shard.end_offset))
        )
    return msgspec.structs.replace(plan, shards=tuple(shards))


def waiting_bytes(plan: Plan, ends: Mapping[int, int]) -> int:
    """About how many bytes of the log are not in the table."""
    return sum(_waiting(shard, ends.get(shard.shard, 0)) for shard in plan.shards)


def _waiting(shard: ShardPlan, end: int) -> int:
    total = 0
    for segment in shard.segments:
        first = max(segment.base_offset, end)
        last = min(segment.end_offset, shard.end_offset)
        span = segment.end_offset - segment.base_offset
        if first < last and span:
            total += max(1, segment.length * (last - first) // span)
    if not shard.segments and shard.end_offset > max(end, shard.start_offset):
        total += shard.end_offset - max(end, shard.start_offset)
    return total
