"""The lake over HTTP: plans of what to read, and how far the tables are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from firnmq.adapter import Topic
from firnmq.cluster.peers import Served
from firnmq.disk import call_blocking
from firnmq.engines.api import ReadEngine
from firnmq.errors import InvalidArgument, NotLeader, StorageTypeNotFound, TopicNotFound
from firnmq.lake.plans.plan import Plan, StorePlace, TablePlace, Wanted
from firnmq.lake.plans.planning import merged, plan_topic, retired_number, table_name
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.cluster_tier import claiming_directory
from firnmq.server.documents import LakeProgress
from firnmq.server.identity import known_directory
from firnmq.tiering.archive.ownership import known_cluster

T = TypeVar("T")

_PLAN: Final = "lake_plan"
_PROGRESS: Final = "lake_progress"
_TIMEOUT_S = 120.0
"""As long as readers wait for a plan."""
_ATTEMPTS = 3
"""How often leaders are asked that have just changed."""


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    """What one node asks another about shards that this leads."""

    topic: str
    topic_id: str
    shards: tuple[int, ...] = ()
    wanted: Wanted | None = None
    ends: dict[int, int] = {}
    applied: dict[int, str] = {}


class LakeAdmin:
    """In a cluster each leader tells of its own shards, whichever node is asked."""

    def __init__(self, parts: NodeParts, others: OtherNodes | None = None) -> None:
        self._parts = parts
        self._local = parts.local
        self._others = others
        if others is not None:
            others.serve(_PLAN, self._serve_plan)
            others.serve(_PROGRESS, self._serve_progress)

    async def plan(self, name: str, wanted: Wanted) -> Plan:
        """Runs in threads, since it may fetch indexes from the object store."""
        topic = self._local.catalog.get(name)
        shards = range(topic.shard_count) if wanted.shards is None else wanted.shards
        for shard in shards:
            self._local.manager.check_shard(topic, shard)

        def part(led: list[int]) -> _Asked:
            here = msgspec.structs.replace(wanted, shards=tuple(led))
            return _Asked(name, topic.topic_id, shards=tuple(led), wanted=here)

        plans = await self._ask_leaders(topic, shards, part, _PLAN, self._answer_plan, Plan)
        nothing = msgspec.structs.replace(wanted, shards=())
        return merged(await call_blocking(None, self._plan, topic, nothing), plans)

    async def progress(self, name: str) -> LakeProgress:
        topic = self._local.catalog.get(name)
        return await self._progress_of(topic, range(topic.shard_count), {}, {})

    async def move(self, name: str, wanted: LakeProgress) -> LakeProgress:
        """Records the table's end, which never moves back, and the deletions it has applied."""
        topic = self._local.catalog.get(name)
        if wanted.topic_id != topic.topic_id:
            raise InvalidArgument(
                "topic_id", f"is another topic's: {name!r} has the id {topic.topic_id}"
            )
        for shard in wanted.ends:
            self._local.manager.check_shard(topic, shard)
        for shard in wanted.applied.keys() - wanted.ends.keys():
            raise InvalidArgument(f"applied.{shard}", "needs the end below which they are applied")
        return await self._progress_of(topic, range(topic.shard_count), wanted.ends, wanted.applied)

    async def _progress_of(
        self, topic: Topic, shards: Iterable[int], ends: dict[int, int], applied: dict[int, str]
    ) -> LakeProgress:

        def part(led: list[int]) -> _Asked:
            return _Asked(
                topic.name,
                topic.topic_id,
                shards=tuple(led),
                ends={shard: ends[shard] for shard in led if shard in ends},
                applied={shard: applied[shard] for shard in led if shard in applied},
            )

        answer = self._answer_progress
        parts = await self._ask_leaders(topic, shards, part, _PROGRESS, answer, LakeProgress)
        found_ends: dict[int, int] = {}
        counts: dict[int, int] = {}
        for each in parts:
            found_ends |= each.ends
            counts |= each.retired_counts
        return LakeProgress(
            topic_id=topic.topic_id,
            ends=dict(sorted(found_ends.items())),
            retired_counts=dict(sorted(counts.items())),
        )

    # By leader ----------------------------------------------------------------------------------

    def _by_leader(self, topic: Topic, shards: Iterable[int]) -> dict[int | None, list[int]]:
        """The shards by the nodes to be asked about them; None: this one."""
        if self._others is None:
            return {None: list(shards)}
        found: dict[int | None, list[int]] = {}
        own, leaders = self._others.node, self._others.cluster.leaders
        for shard in shards:
            led = leaders.get(topic.shard_name(shard))
            node = None if led is None or led.leader == own else led.leader
            found.setdefault(node, []).append(shard)
        return found

    async def _ask_leaders(
        self,
        topic: Topic,
        shards: Iterable[int],
        part: Callable[[list[int]], _Asked],
        operation: str,
        own: Callable[[_Asked], Awaitable[T]],
        kind: type[T],
    ) -> list[T]:
        """Asks the leaders of the shards, all at the same time. `part` makes the question about
        some shards, and `own` answers it for those that this node leads."""
        others = self._others

        def decode(value: memoryview, raw: memoryview) -> T:
            return msgspec.msgpack.decode(value, type=kind)

        async def ask(node: int | None, led: list[int]) -> T:
            asked = part(led)
            if node is None or others is None:
                return await own(asked)
            arguments = msgspec.msgpack.encode(asked)
            return await others.ask(node, operation, decode, arguments, timeout_s=_TIMEOUT_S)

        for attempt in range(_ATTEMPTS):
            by_leader = self._by_leader(topic, shards)
            try:
                return await asyncio.gather(*(ask(node, led) for node, led in by_leader.items()))
            except NotLeader:
                if others is None or attempt == _ATTEMPTS - 1:
                    raise
                await call_blocking(None, others.cluster.catch_up)
        raise AssertionError("the last attempt answers or raises")

    async def _answer_plan(self, asked: _Asked) -> Plan:
        topic = self._same_topic(asked)
        assert asked.wanted is not None
        return await call_blocking(None, self._plan, topic, asked.wanted)

    async def _answer_progress(self, asked: _Asked) -> LakeProgress:
        return await call_blocking(None, self._progress, self._same_topic(asked), asked)

    async def _serve_plan(self, arguments: bytes) -> Served:
        asked = msgspec.msgpack.decode(arguments, type=_Asked)
        return Served(msgspec.msgpack.encode(await self._answer_plan(asked)))

    async def _serve_progress(self, arguments: bytes) -> Served:
        asked = msgspec.msgpack.decode(arguments, type=_Asked)
        return Served(msgspec.msgpack.encode(await self._answer_progress(asked)))

    # What this node leads -----------------------------------------------------------------------

    def _plan(self, topic: Topic, wanted: Wanted) -> Plan:
        address = self._parts.broker.address
        table, reason = self._table(topic)
        plan = plan_topic(
            topic,
            self._engine(topic),
            wanted,
            cluster=self._cluster(),
            leader=f"{address.host}:{address.port}",
            made_ms=self._local.clock.now_ms(),
            store=self._store(),
            table=table,
            directory=self._directory(),
        )
        return msgspec.structs.replace(plan, no_table_because=reason)

    def _progress(self, topic: Topic, asked: _Asked) -> LakeProgress:
        engine, shards = self._engine(topic), self._local.shards
        retired, directory = self._local.state.retired_deletions, self._directory()
        applied = {shard: retired_number(text, directory) for shard, text in asked.applied.items()}
        found: dict[int, int] = {}
        counts: dict[int, int] = {}
        for shard in asked.shards:
            status = engine.status(topic.shard_name(shard))
            uid, end = status.spec.uid, asked.ends.get(shard)
            if end is None:
                found[shard] = shards.lake_end(uid)
            elif not 0 <= end <= status.stable_offset:
                raise InvalidArgument(
                    f"ends.{shard}", f"{end:,} is beyond the shard's end {status.stable_offset:,}"
                )
            else:
                found[shard] = shards.move_lake_end(uid, end)
                retired.drop(uid, applied.get(shard, 0), end)
            if count := retired.count(uid):
                counts[shard] = count
        return LakeProgress(topic_id=topic.topic_id, ends=found, retired_counts=counts)

    def _same_topic(self, asked: _Asked) -> Topic:
        """The topic that was meant: this node may know another one of the name by now. NotLeader
        if another node leads one of the shards."""
        topic = self._local.catalog.get(asked.topic)
        if topic.topic_id != asked.topic_id:
            raise TopicNotFound(asked.topic)
        engine = self._local.engines.get(topic.config.storage_type)
        if self._others is not None and engine is not None:
            for name in map(topic.shard_name, asked.shards):
                if not engine.has_shard(name):
                    raise NotLeader(name, self._others.node, None)
        return topic

    def _engine(self, topic: Topic) -> ReadEngine:
        engine = self._local.engines.get(topic.config.storage_type)
        if engine is None:
            raise StorageTypeNotFound(topic.config.storage_type, within="the engines with segments")
        return engine

    def _cluster(self) -> str:
        meta = self._local.meta
        return known_cluster(meta) or claiming_directory(meta)

    def _directory(self) -> str:
        """The id of this node's directory: what it keeps for tables has numbers of its own."""
        known = known_directory(self._local.kv)
        assert known is not None
        return known.directory_id

    def _store(self) -> StorePlace | None:
        config = self._parts.config.tiering
        if config.url is None:
            return None
        return StorePlace(
            url=config.url,
            endpoint=config.endpoint,
            region=config.region,
            allow_http=config.allow_http,
        )

    def _table(self, topic: Topic) -> tuple[TablePlace | None, str | None]:
        """Where the table is; or None, and why that is not known."""
        config, place, member = self._parts.config.lake, self._parts.place, self._local.member
        path: Path | None = self._local.path
        if place is not None:
            path = place.directory
        elif member is not None:  # One place for all nodes.
            shared = member.config.meta_file
            path = None if shared is None else shared.parent
        if path is None and (config.catalog is None or config.warehouse is None):
            return None, "the nodes of this cluster need catalog and warehouse in [lake]"
        table = TablePlace(
            catalog=config.catalog_in(path or Path()),
            warehouse=config.warehouse_in(path or Path()),
            name=table_name(topic.name),
        )
        return table, None
