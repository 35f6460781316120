"""What other nodes ask about the shards that this node leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from time import monotonic
from typing import Any

import msgspec

from firnmq.adapter.catalog import TopicCatalog
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.adapter.forwarding import operations as ops
from firnmq.adapter.forwarding.following import ShardFollower
from firnmq.adapter.watching import wait_for_append
from firnmq.cluster.nodes.cluster import CATCH_UP_S, PING, Cluster
from firnmq.cluster.peers import Request, Served
from firnmq.config import TopicConfig
from firnmq.disk import FileRange, call_blocking
from firnmq.engines import Acks
from firnmq.errors import InvalidArgument, NotLeader, ShardNotFound, TimedOut

Handle = Callable[[Request], Awaitable[Awaitable[Served]]]

_WATCH_S_MAX = 5.0


class ShardService:
    """A RequestHandler; used from the event loop of the network's thread."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: TopicCatalog,
        drivers: Mapping[str, EngineStorageAdapter],
        follower: ShardFollower,
        wait_led: Callable[[float], bool],
    ) -> None:
        """`drivers` are those of this node's engines, by storage type. `wait_led` waits until this
        node leads the replicated shards that the metadata give it; False if it does not in time.
        """
        self._wait_led = wait_led
        self._cluster = cluster
        self._catalog = catalog
        self._drivers = drivers
        self._follower = follower
        self.others: dict[str, Handle] = {}
        """Operations that are served elsewhere."""

    async def begin(self, request: Request) -> Awaitable[Served]:
        other = self.others.get(request.operation)
        if other is not None:
            return await other(request)
        if request.operation == ops.SUBMIT.name:
            return await self._submit(request)
        if request.operation == PING:
            return _pong()
        if request.operation == ops.FOLLOW.name:
            return self._follow(*ops.FOLLOW.decode(request.arguments))
        if request.operation == ops.RECONFIGURE.name:
            return self._reconfigure(*ops.RECONFIGURE.decode(request.arguments))
        operation = ops.SHARD_OPERATIONS.get(request.operation)
        if operation is None:
            raise InvalidArgument("operation", f"{request.operation!r} is not known to this node")
        shard, *arguments = operation.decode(request.arguments)
        return _CALLS[operation.name](self.driver(shard), shard, *arguments)

    def driver(self, shard: str) -> EngineStorageAdapter:
        """The driver of a shard that this node leads; NotLeader if it is another node's."""
        topic = self._catalog.registered(shard.rpartition("_")[0])
        led = self._cluster.leaders.get(shard)
        if topic is None or led is None:
            # The node that asks may know more than this one's cache.
            raise NotLeader(shard, self._cluster.node, None)
        driver = self._drivers.get(topic.config.storage_type)
        if driver is None:
            raise ShardNotFound(shard, within=topic.config.storage_type)
        if not driver.leads(shard):
            leader = None if led.leader == self._cluster.node else led.leader
            raise NotLeader(shard, self._cluster.node, leader)
        return driver

    async def _submit(self, request: Request) -> Awaitable[Served]:
        shard, acks, waits_ms = ops.SUBMIT.decode(request.arguments)
        deadline_s = None if waits_ms < 0 else monotonic() + waits_ms / 1000
        ticket = await self.driver(shard).submit(shard, request.raw, Acks(acks), deadline_s)

        async def answer() -> Served:
            return _served(await ticket)

        return answer()

    async def _follow(self, revision: int) -> Served:
        is_followed = await call_blocking(None, self._follower.wait, revision, CATCH_UP_S)
        if not is_followed or not await call_blocking(None, self._wait_led, CATCH_UP_S):
            raise TimedOut("the node has not taken over its shards in time")
        return _served(None)

    async def _reconfigure(
        self, shards: list[str], options: dict[str, str | None], revision: int
    ) -> Served:
        config = TopicConfig.from_options(options)
        for shard in shards:
            await self.driver(shard).reconfigure([shard], config, revision)
        return _served(None)


async def _pong() -> Served:
    return Served(b"")


def _served(value: Any) -> Served:
    return Served(msgspec.msgpack.encode(value))


Call = Callable[..., Coroutine[Any, Any, Served]]


def _plain(name: str, *keywords: str) -> Call:
    """Calls the driver's operation of this name; its last arguments are those keywords."""

    async def call(driver: EngineStorageAdapter, shard: str, *arguments: Any) -> Served:
        split = len(arguments) - len(keywords)
        named = dict(zip(keywords, arguments[split:], strict=True))
        return _served(await getattr(driver, name)(shard, *arguments[:split], **named))

    return call


def _page(name: str, *keywords: str) -> Call:
    async def call(driver: EngineStorageAdapter, shard: str, *arguments: Any) -> Served:
        split = len(arguments) - len(keywords)
        named = dict(zip(keywords, arguments[split:], strict=True))
        page = await getattr(driver, name)(shard, *arguments[:split], **named)
        return Served(await call_blocking(None, ops.encode_page, page))

    return call


async def _append(driver: EngineStorageAdapter, shard: str, packed: list[bytes]) -> Served:
    records = [ops.decode_record(each) for each in packed]
    return _served(await driver.batch_write(shard, records))


async def _read_stored(
    driver: EngineStorageAdapter, shard: str, offset: int, max_bytes: int, committed: bool
) -> Served:
    page = driver.read_stored_nowait(
        shard, offset, max_bytes=max_bytes, committed=committed, ranges=False
    )
    if page is None:
        page = await driver.in_reader(
            lambda: driver.read_stored(
                shard, offset, max_bytes=max_bytes, committed=committed, ranges=False
            )
        )
    contents = [content for content in page.contents if not isinstance(content, FileRange)]
    return Served(ops.encode_stored(page), contents)


async def _check_change(
    driver: EngineStorageAdapter, shard: str, options: dict[str, str | None]
) -> Served:
    await driver.check_change(shard, TopicConfig.from_options(options))
    return _served(None)


async def _watch(driver: EngineStorageAdapter, shard: str, end_offset: int, wait_ms: int) -> Served:
    await driver.bounds(shard)  # Opens the shard where waiting is allowed.
    await wait_for_append([(driver, shard, end_offset)], min(wait_ms / 1000, _WATCH_S_MAX))
    return _served(None)


_LIMITS = ("max_records", "max_bytes")
_CALLS: dict[str, Call] = {
    ops.APPEND.name: _append,
    ops.APPEND_MARKER.name: _plain("append_marker", "is_commit"),
    ops.BOUNDS.name: _plain("bounds"),
    ops.STABLE_OFFSET.name: _plain("stable_offset"),
    ops.STATUS.name: _plain("status"),
    ops.ROLL.name: _plain("roll"),
    ops.PRODUCERS.name: _plain("producers"),
    ops.FIND_OFFSET.name: _plain("find_offset", "committed"),
    ops.FIND_NEWEST.name: _plain("find_newest", "committed"),
    ops.OFFSET_AT.name: _plain("get_offset_by_timestamp"),
    ops.READ_STORED.name: _read_stored,
    ops.READ_BY_OFFSET.name: _page("read_by_offset", *_LIMITS),
    ops.READ_BY_TAG.name: _page("read_by_tag", *_LIMITS),
    ops.READ_BY_KEY.name: _page("read_by_key"),
    ops.READ_KEY_HISTORY.name: _page("read_key_history", *_LIMITS),
    ops.DELETE_KEY.name: _plain("delete_key"),
    ops.DELETE_OFFSETS.name: _plain("delete_offsets"),
    ops.DELETE_BEFORE.name: _plain("delete_records_before"),
    ops.CHECK_CHANGE.name: _check_change,
    ops.WATCH.name: _watch,
}
