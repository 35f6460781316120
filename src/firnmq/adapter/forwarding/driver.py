"""ClusterDriver: a driver that carries out operations here or asks the shard's leader.

Which it is, the engine decides: it has exactly the shards that this node leads. The leader's own
answer is returned, and its own errors are raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from firnmq.adapter.api import BatchStorage, LogAdmin, ShardBounds
from firnmq.adapter.catalog import TopicCatalog, TopicState
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.adapter.forwarding import operations as ops
from firnmq.adapter.forwarding.moving import ShardMover
from firnmq.adapter.forwarding.operations import Operation
from firnmq.adapter.forwarding.watching import RemoteWatches
from firnmq.clock import Clock
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.config import TopicConfig
from firnmq.disk import Ticket, call_blocking, run_blocking
from firnmq.disk.files import Buffer
from firnmq.engines import (
    Acks,
    AdapterOffsetStrategy,
    Appended,
    Page,
    ShardStatus,
    StoredPage,
    check_append,
)
from firnmq.engines.api import ProducerStatus, ShardEngine
from firnmq.engines.open_log import OpenLog
from firnmq.errors import (
    KeyNotFound,
    NodeUnavailable,
    NotLeader,
    ShardNotFound,
    TimedOut,
    TopicNotFound,
)
from firnmq.meta import Compare
from firnmq.meta.records import topic_key
from firnmq.record import NewRecord

T = TypeVar("T")

_ATTEMPTS = 3
"""Nodes that are asked, one after the other, when leadership moves."""
_SLACK_S = 1.0
"""How much longer than the leader's own deadline the answer is waited for."""
_NO_DEADLINE_S = 30.0


class ClusterDriver:
    """A Driver with batches and logs, over the local driver of the same storage type."""

    def __init__(
        self,
        local: EngineStorageAdapter,
        engine: ShardEngine,
        cluster: Cluster,
        catalog: TopicCatalog,
        waiting: ThreadPoolExecutor,
        clock: Clock,
        mover: ShardMover | None = None,
    ) -> None:
        """`waiting`: threads that wait for other nodes."""
        self.local = local
        self._engine = engine
        self._cluster = cluster
        self._catalog = catalog
        self._waiting = waiting
        self._clock = clock
        self._mover = mover
        self._watches = RemoteWatches(self._wait_grown)
        self._has = engine.has_shard
        self.open_log: Callable[[str], OpenLog | None] = self._open_log

    @property
    def batches(self) -> BatchStorage:
        return self

    @property
    def logs(self) -> LogAdmin:
        return self

    def leads(self, shard: str) -> bool:
        """Whether this node leads the shard."""
        return self._has(shard)

    def leader_epoch(self, shard: str) -> int:
        """The epoch of the shard's leader, as this node's cache knows it."""
        led = self._cluster.leaders.get(shard)
        return 0 if led is None else led.epoch

    # Asking -----------------------------------------------------------------------------------

    async def _ask(
        self,
        operation: Operation,
        shard: str,
        arguments: Sequence[Any],
        here: Callable[[], Coroutine[Any, Any, T]],
        decode: Callable[[memoryview, memoryview], T] | None = None,
    ) -> T:
        """Carries out an operation of a shard, here or at its leader. If leadership moves, the next
        leader is asked: a node that does not lead has changed nothing."""
        for attempt in range(_ATTEMPTS):
            try:
                if self._has(shard):
                    return await here()
                node = self.leader(shard)
                ticket: Ticket[T] = self._cluster.network.call(
                    node,
                    operation.name,
                    operation.encode(shard, *arguments),
                    decode or operation.result_of,
                    timeout_s=operation.timeout_s,
                )
                return await ticket
            except NotLeader:
                if attempt == _ATTEMPTS - 1:
                    raise
                await call_blocking(self._waiting, self._cluster.catch_up)
        raise AssertionError("the last attempt returns or raises")

    def leader(self, shard: str) -> int:
        """The other node that leads a shard."""
        led = self._cluster.leaders.get(shard)
        if led is None:
            raise ShardNotFound(shard, within="the cluster")
        if led.leader == self._cluster.node:  # The shard is about to be taken over.
            raise NotLeader(shard, self._cluster.node, None)
        return led.leader

    def leader_for_appends(self, shard: str) -> int:
        """The other node that leads a shard, for batches of a client's own; NotLeader if it has not
        done so for long.

        A client sends several batches at a time. If the first is refused by the earlier leader, the
        others must not reach the next one before it: an idempotent producer takes that for a
        loss. So the client is told, and goes to the leader by itself.
        """
        node = self.leader(shard)
        if self._cluster.leaders.has_just_moved(shard):
            raise NotLeader(shard, self._cluster.node, node)
        return node

    # Shards -----------------------------------------------------------------------------------

    async def create_shard(self, shard: str, config: TopicConfig) -> None:
        await self.create_shards([shard], config, shard.rpartition("_")[0])

    async def create_shards(
        self, shards: Sequence[str], config: TopicConfig, topic_id: str
    ) -> None:
        """Makes a topic's shards on the nodes that placement chooses, and returns when their
        leaders have them; those that are there already stay."""
        await call_blocking(self._waiting, self._add, shards, config, topic_id)
        leaders = {self._cluster.leaders.get(shard) for shard in shards}
        await self._wait_followed({led.leader for led in leaders if led is not None})

    def _add(self, shards: Sequence[str], config: TopicConfig, topic_id: str) -> None:
        self._cluster.catch_up()  # What was removed just now is not there any more.
        missing = [shard for shard in shards if self._cluster.leaders.get(shard) is None]
        if missing:
            replicas = self._cluster.place(missing, config.replication_factor or 1)
            self._cluster.shards.add_shards(
                missing, config, topic_id, replicas=replicas, topic=lambda: self._there(topic_id)
            )

    def _there(self, topic_id: str) -> Compare:
        """Holds as long as the topic is not removed. TopicNotFound if it is: this node's claim has
        ended, and another one has removed what it took for left behind."""
        known = self._catalog.registered(topic_id)
        stored = None if known is None else self._catalog.stored(known.name)
        if stored is None or stored.topic_id != topic_id or stored.state is TopicState.DELETING:
            raise TopicNotFound(topic_id if known is None else known.name)
        return Compare(key=topic_key(stored.name), revision=stored.revision)

    async def _wait_followed(self, nodes: set[int]) -> None:
        """Returns when the nodes have taken over what they lead."""
        revision = self._cluster.cache.revision
        tickets = [
            self._cluster.network.call(
                node,
                ops.FOLLOW.name,
                ops.FOLLOW.encode(revision),
                ops.FOLLOW.result_of,
                timeout_s=ops.FOLLOW.timeout_s,
            )
            for node in nodes
        ]
        for ticket in tickets:
            await ticket

    async def delete_shard(self, shard: str) -> None:
        await self.delete_shards([shard])

    async def delete_shards(self, shards: Sequence[str]) -> None:
        """Removes shards that no topic counts; their leaders then remove the bytes. Shards that a
        topic counts stay: another node has changed the topic."""
        await call_blocking(self._waiting, self._remove, shards)

    async def delete_shards_beyond(self, shard_counts: Mapping[str, int]) -> None:
        beyond = [
            shard
            for topic_id, count in shard_counts.items()
            for shard in self._cluster.leaders.shards_of(topic_id)
            if int(shard.rpartition("_")[2]) >= count
        ]
        if beyond:
            await self.delete_shards(beyond)

    def _remove(self, shards: Sequence[str]) -> None:
        by_topic: dict[str, list[str]] = {}
        for shard in shards:
            by_topic.setdefault(shard.rpartition("_")[0], []).append(shard)
        for topic_id, names in by_topic.items():
            topic = self._catalog.registered(topic_id)
            stored = None if topic is None else self._catalog.stored(topic.name)
            compares: list[Compare] = []
            if topic is not None and (stored is None or stored.topic_id != topic_id):
                stored = None
            if stored is not None:
                count = stored.shard_count if stored.state is TopicState.READY else 0
                names = [name for name in names if int(name.rpartition("_")[2]) >= count]
                compares.append(Compare(key=topic_key(stored.name), revision=stored.revision))
            self._cluster.shards.remove_shards(names, compares)

    async def list_shard(self) -> list[ShardBounds]:
        """The shards that this node leads."""
        return await self.local.list_shard()

    async def run_to_end(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.local.run_to_end(work)

    # Writing ----------------------------------------------------------------------------------

    async def submit(
        self,
        shard: str,
        batch: Buffer,
        acks: Acks = Acks.ALL,
        deadline_s: float | None = None,
    ) -> Awaitable[Appended]:
        if self._has(shard):
            return await self.local.submit(shard, batch, acks, deadline_s)
        left_s = _NO_DEADLINE_S if deadline_s is None else max(deadline_s - monotonic(), 0.0)
        waits_ms = -1 if deadline_s is None else int(left_s * 1000)
        return self._cluster.network.call(
            self.leader_for_appends(shard),
            ops.SUBMIT.name,
            ops.SUBMIT.encode(shard, int(acks), waits_ms),
            ops.SUBMIT.result_of,
            raw=(batch,),
            timeout_s=left_s + _SLACK_S,
            lane=shard,
        )

    async def batch_write(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        if self._has(shard):
            return await self.local.batch_write(shard, records)
        topic = self._catalog.registered(shard.rpartition("_")[0])
        if topic is None:
            raise ShardNotFound(shard, within="the cluster")
        check_append(records, topic.config, self._clock.now_ms())
        packed = [ops.encode_record(record) for record in records]
        return await self._ask(
            ops.APPEND, shard, (packed,), lambda: self.local.batch_write(shard, records)
        )

    async def write(self, shard: str, record: NewRecord) -> int:
        return (await self.batch_write(shard, (record,))).base_offset

    async def append_marker(
        self, shard: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> Appended:
        return await self._ask(
            ops.APPEND_MARKER,
            shard,
            (producer_id, epoch, is_commit),
            lambda: self.local.append_marker(shard, producer_id, epoch, is_commit=is_commit),
        )

    # Reading ----------------------------------------------------------------------------------

    def _open_log(self, shard: str) -> OpenLog | None:
        return self.local.open_log(shard) if self._has(shard) else None

    def read_stored_nowait(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage | None:
        if not self._has(shard):
            return None
        return self.local.read_stored_nowait(
            shard, offset, max_bytes=max_bytes, committed=committed, ranges=ranges
        )

    def read_stored(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage:
        if self._has(shard):
            return self.local.read_stored(
                shard, offset, max_bytes=max_bytes, committed=committed, ranges=ranges
            )

        async def here() -> StoredPage:
            return self.local.read_stored(
                shard, offset, max_bytes=max_bytes, committed=committed, ranges=ranges
            )

        arguments = (offset, max_bytes, committed)
        return run_blocking(self._ask(ops.READ_STORED, shard, arguments, here, ops.decode_stored))

    def in_reader(self, function: Callable[[], T], *, cold: bool = False) -> asyncio.Future[T]:
        """What may wait for another node is `cold`, and has threads of its own."""
        if cold:
            return asyncio.get_running_loop().run_in_executor(self._waiting, function)
        return self.local.in_reader(function)

    def is_cold(
        self, shard: str, *, offset: int | None = None, timestamp_ms: int | None = None
    ) -> bool:
        if self._has(shard):
            return self.local.is_cold(shard, offset=offset, timestamp_ms=timestamp_ms)
        return offset is not None

    async def bounds(self, shard: str) -> tuple[int, int]:
        return await self._ask(ops.BOUNDS, shard, (), lambda: self.local.bounds(shard))

    async def stable_offset(self, shard: str) -> int:
        return await self._ask(
            ops.STABLE_OFFSET, shard, (), lambda: self.local.stable_offset(shard)
        )

    async def read_by_offset(
        self, shard: str, offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        return await self._ask(
            ops.READ_BY_OFFSET,
            shard,
            (offset, max_records, max_bytes),
            lambda: self.local.read_by_offset(
                shard, offset, max_records=max_records, max_bytes=max_bytes
            ),
            ops.decode_page,
        )

    async def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        return await self._ask(
            ops.READ_BY_TAG,
            shard,
            (tag, start_offset, max_records, max_bytes),
            lambda: self.local.read_by_tag(
                shard, tag, start_offset, max_records=max_records, max_bytes=max_bytes
            ),
            ops.decode_page,
        )

    async def read_by_key(self, shard: str, key: bytes) -> Page:
        return await self._ask(
            ops.READ_BY_KEY,
            shard,
            (key,),
            lambda: self.local.read_by_key(shard, key),
            ops.decode_page,
        )

    async def read_by_key_among(self, shards: Sequence[str], key: bytes) -> dict[str, Page]:
        here = [shard for shard in shards if self._has(shard)]
        found = await self.local.read_by_key_among(here, key) if here else {}
        for shard in shards:
            if shard not in found and not self._has(shard):
                with suppress(KeyNotFound):
                    found[shard] = await self.read_by_key(shard, key)
        return found

    async def read_key_history(
        self, shard: str, key: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        return await self._ask(
            ops.READ_KEY_HISTORY,
            shard,
            (key, start_offset, max_records, max_bytes),
            lambda: self.local.read_key_history(
                shard, key, start_offset, max_records=max_records, max_bytes=max_bytes
            ),
            ops.decode_page,
        )

    async def get_offset_by_timestamp(
        self, shard: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> int:
        return await self._ask(
            ops.OFFSET_AT,
            shard,
            (timestamp_ms, strategy),
            lambda: self.local.get_offset_by_timestamp(shard, timestamp_ms, strategy),
        )

    async def find_offset(self, shard: str, timestamp_ms: int, *, committed: bool) -> int:
        return await self._ask(
            ops.FIND_OFFSET,
            shard,
            (timestamp_ms, committed),
            lambda: self.local.find_offset(shard, timestamp_ms, committed=committed),
        )

    async def find_newest(self, shard: str, *, committed: bool) -> tuple[int, int] | None:
        return await self._ask(
            ops.FIND_NEWEST,
            shard,
            (committed,),
            lambda: self.local.find_newest(shard, committed=committed),
        )

    # Watching ---------------------------------------------------------------------------------

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> Callable[[], None] | None:
        if self._has(shard):
            return self.local.watch(shard, end_offset, ticket)
        return self._watches.add(shard, end_offset, ticket)

    async def _wait_grown(self, shard: str, end_offset: int, wait_s: float) -> None:
        """Returns when a shard of another node has grown beyond the offset, or in time."""
        ticket: Ticket[None] = self._cluster.network.call(
            self.leader(shard),
            ops.WATCH.name,
            ops.WATCH.encode(shard, end_offset, int(wait_s * 1000)),
            ops.WATCH.result_of,
            timeout_s=wait_s + _SLACK_S,
        )
        await ticket

    # Changing what is there -------------------------------------------------------------------

    async def delete_by_key(self, shard: str, key: bytes) -> None:
        await self.delete_key(shard, key)

    async def delete_by_offset(self, shard: str, offset: int) -> None:
        await self.delete_offsets(shard, (offset,))

    async def delete_key(self, shard: str, key: bytes) -> int | None:
        return await self._ask(
            ops.DELETE_KEY, shard, (key,), lambda: self.local.delete_key(shard, key)
        )

    async def delete_offsets(self, shard: str, offsets: Sequence[int]) -> list[int]:
        return await self._ask(
            ops.DELETE_OFFSETS,
            shard,
            (list(offsets),),
            lambda: self.local.delete_offsets(shard, offsets),
        )

    async def delete_records_before(self, shard: str, offset: int) -> int:
        return await self._ask(
            ops.DELETE_BEFORE,
            shard,
            (offset,),
            lambda: self.local.delete_records_before(shard, offset),
        )

    async def status(self, shard: str) -> ShardStatus:
        return await self._ask(ops.STATUS, shard, (), lambda: self.local.status(shard))

    async def producers(self, shard: str) -> list[ProducerStatus]:
        return await self._ask(ops.PRODUCERS, shard, (), lambda: self.local.producers(shard))

    async def roll(self, shard: str) -> None:
        await self._ask(ops.ROLL, shard, (), lambda: self.local.roll(shard))

    async def move(self, shard: str, node: int) -> None:
        """Has another node lead the shard from now on; it keeps the records that it has where they
        are. InvalidArgument if it cannot move."""

        async def here() -> None:
            assert self._mover is not None
            await self._mover.move(shard, node)

        await self._ask(ops.MOVE, shard, (node,), here)

    async def check_change(self, shard: str, config: TopicConfig) -> None:
        await self._ask(
            ops.CHECK_CHANGE,
            shard,
            (config.options(),),
            lambda: self.local.check_change(shard, config),
        )

    async def reconfigure(self, shards: Sequence[str], config: TopicConfig, revision: int) -> None:
        """Gives shards a topic's options. A leader that is away reads them when it starts; one that
        was not told follows with its next round of upkeep."""
        here = [shard for shard in shards if self._has(shard)]
        if here:
            await self.local.reconfigure(here, config, revision)
        by_node: dict[int, list[str]] = {}
        for shard in shards:
            led = self._cluster.leaders.get(shard)
            if led is not None and led.leader != self._cluster.node:
                by_node.setdefault(led.leader, []).append(shard)
        for node, names in by_node.items():
            ticket: Ticket[None] = self._cluster.network.call(
                node,
                ops.RECONFIGURE.name,
                ops.RECONFIGURE.encode(names, config.options(), revision),
                ops.RECONFIGURE.result_of,
                timeout_s=ops.RECONFIGURE.timeout_s,
            )
            with suppress(NodeUnavailable, TimedOut):
                await ticket

    # Offsets of groups ------------------------------------------------------------------------

    async def get_offset_by_group(self, group: str) -> dict[str, int]:
        return await self.local.get_offset_by_group(group)

    async def commit_offset(self, group: str, offsets: Mapping[str, int]) -> None:
        await self.local.commit_offset(group, offsets)
