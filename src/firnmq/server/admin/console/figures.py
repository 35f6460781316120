"""Sizes, rates and lags of all topics and groups at once, for lists that are sorted by them.

They are gathered again when a view asks and they are older than a few seconds: topics in a thread,
groups in small steps on the event loop. Nothing is gathered while no view asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from firnmq.adapter import CommittedOffset, Topic
from firnmq.brokers.kafka.groups import GroupState
from firnmq.cluster.peers import Served
from firnmq.disk import call_blocking
from firnmq.engines.catalog.segments import SegmentState
from firnmq.errors import FirnError
from firnmq.meta.records import SEGMENTS, SegmentRecord, decode, shard_of_segment
from firnmq.server.admin.endpoints.groups import GroupAdmin
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import GroupOffset
from firnmq.server.local import LocalStore

T = TypeVar("T")

_AGE_S_MAX: Final = 3.0
_QUICK_S: Final = 0.5
"""What was gathered as quickly as this is gathered again before the answer, not behind it."""
_REST: Final = 20
"""Gathering takes at most one part in so many of the time."""
_BOARD: Final = "group_board"
_GROUPS_PER_STEP: Final = 200
_STEP_S: Final = 0.004
"""After so long on the event loop, other work has its turn."""
_TOPICS_SHOWN: Final = 5
_BREATH: Final = 100
"""Topics or segments after which the gathering thread lets the event loop have the interpreter."""
_BREATH_S: Final = 0.0005
_SILENT_MS: Final = 60_000
"""A consumer that commits less often than this is taken for stuck."""


class TopicFigures(NamedTuple):
    """A topic at one moment."""

    record_count: int
    length_bytes: int
    store_only_bytes: int
    record_rate: float | None = None


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A group at one moment, as its node knows it."""

    group: str
    state: str
    protocol_type: str
    member_count: int
    lag: int
    shard_count: int
    topics: list[str]
    committed_ms: int | None
    lags: dict[str, int]
    """By topic."""
    lag_rate: float | None = None


class Gathered(Generic[T]):
    """The last result of a function that takes long, and the task that makes the next one."""

    def __init__(self, gather: Callable[[T | None, float], Awaitable[T]]) -> None:
        """`gather` gets the last result and its age in seconds."""
        self._gather = gather
        self._last: T | None = None
        self._made_s = 0.0
        self._took_s = 0.0
        self._is_expired = False
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        age_s = time.monotonic() - self._made_s
        is_new = age_s < max(_AGE_S_MAX, self._took_s * _REST)
        if self._last is not None and is_new and not self._is_expired:
            return self._last
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        if self._last is not None and self._took_s > _QUICK_S:
            return self._last
        return await asyncio.shield(self._task)

    def expire(self) -> None:
        """What was gathered is not true any more. Where gathering takes long, it stays until its
        time."""
        self._is_expired = self._took_s <= _QUICK_S

    async def _run(self) -> T:
        begun_s = time.monotonic()
        self._is_expired = False
        self._last = await self._gather(self._last, begun_s - self._made_s)
        self._made_s = time.monotonic()
        self._took_s = self._made_s - begun_s
        return self._last


class Figures:
    """Owned by the event loop."""

    def __init__(self, parts: NodeParts, groups: GroupAdmin, others: OtherNodes | None) -> None:
        self._parts = parts
        self._groups = groups
        self._others = others
        self.topics: Gathered[Mapping[str, TopicFigures]] = Gathered(self._gather_topics)
        """By topic id."""
        self._own: Gathered[list[GroupFigures]] = Gathered(self._gather_groups)
        if others is not None:
            others.serve(_BOARD, self._serve)

    async def groups(self) -> list[GroupFigures]:
        """Of all nodes that answer."""
        own = await self._own.get()
        if self._others is None:
            return own
        answers = await self._others.ask_all(self._others.registered(), _BOARD, _decoded)
        found = list(own)
        for answer in answers.values():
            if not isinstance(answer, FirnError):
                found += answer
        return found

    def expire_groups(self) -> None:
        self._own.expire()

    async def _serve(self, _: bytes) -> Served:
        return Served(msgspec.msgpack.encode(await self._own.get()))

    async def _gather_topics(
        self, before: Mapping[str, TopicFigures] | None, age_s: float
    ) -> Mapping[str, TopicFigures]:
        local = self._parts.local

        def gather() -> dict[str, TopicFigures]:
            found = _topic_figures(local)
            return found if before is None else _with_rates(found, before, age_s)

        return await call_blocking(None, gather)

    async def _gather_groups(
        self, before: list[GroupFigures] | None, age_s: float
    ) -> list[GroupFigures]:
        names = await self._groups.names()
        topics = {topic.topic_id: topic for topic in self._parts.storage.catalog.topics()}
        lags = {} if before is None else {each.group: each.lag for each in before}
        found: list[GroupFigures] = []
        begun_s = time.monotonic()
        at = 0
        while at < len(names):
            loaded = await self._parts.offsets.load_committed_of(names[at : at + _GROUPS_PER_STEP])
            for name, committed in zip(names[at:], loaded, strict=False):
                if time.monotonic() - begun_s > _STEP_S:
                    await asyncio.sleep(0)
                    begun_s = time.monotonic()
                offsets = {} if isinstance(committed, FirnError) else committed
                found.append(await self._figures(name, offsets, topics, lags.get(name), age_s))
            at += max(len(loaded), 1)
        return found

    async def _figures(
        self,
        name: str,
        committed: Mapping[str, CommittedOffset],
        topics: Mapping[str, Topic],
        before: int | None,
        age_s: float,
    ) -> GroupFigures:
        manager = self._parts.local.manager
        described = self._parts.coordinator.describe(name)
        lags: dict[str, int] = {}
        for shard, entry in committed.items():
            topic_id, _, number = shard.rpartition("_")
            topic = topics.get(topic_id)
            if topic is None:
                continue
            with suppress(FirnError):  # Deleted just now, or it cannot be opened: nothing to add.
                start, end = await manager.bounds(topic, int(number))
                lag = max(end - max(entry.offset, start), 0)
                lags[topic.name] = lags.get(topic.name, 0) + lag
        total = sum(lags.values())
        return GroupFigures(
            group=name,
            state=(
                GroupState.EMPTY if described.state is GroupState.DEAD else described.state
            ).value,
            protocol_type=described.protocol_type,
            member_count=len(described.members),
            lag=total,
            shard_count=len(committed),
            topics=sorted(lags)[:_TOPICS_SHOWN],
            committed_ms=max((each.committed_ms for each in committed.values()), default=None),
            lags={topic: lag for topic, lag in lags.items() if lag},
            lag_rate=None if before is None else round((total - before) / max(age_s, 0.1), 1),
        )


def why_lagging(figures: GroupFigures, now_ms: int) -> str | None:
    """Why the group lags, as far as the node can tell; None if it does not."""
    if not figures.lag:
        return None
    if not figures.member_count:
        return "no consumer is connected"
    if figures.committed_ms is None:
        return "its consumers have committed nothing"
    silent_ms = now_ms - figures.committed_ms
    if silent_ms > _SILENT_MS:
        return f"its consumers have committed nothing for {_ago(silent_ms)}"
    if figures.lag_rate is None or figures.lag_rate == 0:
        return "its consumers are reading"
    if figures.lag_rate > 0:
        return "records are stored faster than its consumers commit"
    return "its consumers are catching up"


def why_behind(row: GroupOffset, member_count: int, now_ms: int) -> str | None:
    """The same for one shard."""
    if row.committed_offset is None:
        return "nothing is committed yet"
    if row.committed_offset < row.start_offset:
        return "the committed offset is no longer kept: retention has removed its record"
    if not row.lag:
        return None
    if not member_count:
        return "no consumer is connected"
    if row.member_id is None:
        return "the shard is assigned to no member"
    silent_ms = now_ms - (row.committed_ms or 0)
    if silent_ms > _SILENT_MS:
        return f"its member has committed nothing for {_ago(silent_ms)}"
    return "its member is reading"


def _ago(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit}"
    return f"{ms // 1000} s"


def _topic_figures(local: LocalStore) -> dict[str, TopicFigures]:
    """Open shards tell of themselves; for the others the metadata does, which does not know how
    far an active segment has come."""
    closed = _closed_shards(local)
    found = {}
    for number, topic in enumerate(local.catalog.topics()):
        if number % _BREATH == 0:
            time.sleep(_BREATH_S)
        engine = local.engines.get(topic.config.storage_type)
        if engine is None:
            continue
        records = length = remote = 0
        for shard in topic.shard_names():
            with suppress(FirnError):  # It is being deleted, or cannot be read.
                if engine.is_open(shard):
                    status = engine.status(shard)
                    records += status.end_offset - status.start_offset
                    length += status.length_bytes
                    remote += sum(each.length for each in status.segments if not each.is_local)
                elif shard in closed:
                    more = closed[shard]
                    records += more[0]
                    length += more[1]
                    remote += more[2]
        found[topic.topic_id] = TopicFigures(records, length, remote)
    return found


def _closed_shards(local: LocalStore) -> dict[str, tuple[int, int, int]]:
    """Records, bytes and bytes only in the store of sealed segments, by shard."""
    found: dict[str, tuple[int, int, int]] = {}
    for number, entry in enumerate(local.cache.below(SEGMENTS)):
        if number % _BREATH == 0:
            time.sleep(_BREATH_S)
        record = decode(entry, SegmentRecord)
        if record.state in (SegmentState.SEALED, SegmentState.TIERED):
            shard = shard_of_segment(entry.key)
            count, length, remote = found.get(shard, (0, 0, 0))
            remote += 0 if record.is_local else record.length
            found[shard] = (count + record.end - record.start, length + record.length, remote)
    return found


def _with_rates(
    now: Mapping[str, TopicFigures], before: Mapping[str, TopicFigures], age_s: float
) -> dict[str, TopicFigures]:
    found = {}
    for topic_id, each in now.items():
        last = before.get(topic_id)
        if last is not None:
            # Retention moves the start, so a count can fall although records were stored.
            rate = max(each.record_count - last.record_count, 0) / max(age_s, 0.1)
            each = each._replace(record_rate=round(rate, 1))
        found[topic_id] = each
    return found


def _decoded(value: memoryview, raw: memoryview) -> list[GroupFigures]:
    return msgspec.msgpack.decode(value, type=list[GroupFigures])
