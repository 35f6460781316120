"""Fetches of what is only in the object store, and those beside them that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firnmq.brokers.kafka.handlers import fetch as fetch_module
from firnmq.brokers.kafka.handlers.fetch import FetchHandler
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import StoreConfig, TopicConfig
from firnmq.errors import KeyNotFound, StoreUnavailable
from firnmq.record import NewRecord, decode, encode
from firnmq.server import LocalStore
from tests.conformance.copied import CopiedStore, upload
from tests.unit.brokers.kafka.stage import append_to

COLD, HOT = 0, 1
PATIENCE_S = 40
"""Less than the store lets anybody wait at its gate."""


class Scene:
    """A topic whose first partition begins in the object store; the second is all here."""

    def __init__(self, store: LocalStore, copies: CopiedStore) -> None:
        self.store = store
        self.copies = copies
        self.storage = KafkaStorage(store.manager)
        self.handler = FetchHandler(self.storage, Turns())

    async def prepare(self) -> None:
        topic = await self.store.manager.create_topic(
            "t", 2, TopicConfig.from_options({"tiering": "on"})
        )
        for number in range(3):
            await self.produce(COLD, b"cold %d" % number)
        shard = topic.shard_name(COLD)
        engine = self.store.engines[topic.config.storage_type]
        engine.roll(shard)
        upload(self.copies, engine, shard, 0)
        engine.drop_local(shard, 0)
        await self.produce(COLD, b"tail")
        await self.produce(HOT, b"hot")

    async def produce(self, partition: int, *values: bytes) -> None:
        batch = encode([NewRecord(value=value, timestamp_ms=1) for value in values], now_ms=1)
        await append_to(self.storage, "t", partition, batch)

    async def fetch(
        self, *wanted: tuple[int, int], max_wait_ms: int = 30_000, min_bytes: int = 1
    ) -> list[PartitionData]:
        partitions = tuple(
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=10**6)
            for partition, offset in wanted
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=10**8,
            topics=(FetchTopic(topic="t", partitions=partitions),),
        )
        response = await self.handler.handle(request, takes_ranges=True)
        return list(response.responses[0].partitions)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    copies = CopiedStore()
    config = StoreConfig(read_threads=1, cold_read_threads=2)
    store = LocalStore(tmp_path, background=False, cold=copies, config=config)
    scene = Scene(store, copies)
    await scene.prepare()
    yield scene
    copies.gate.set()
    store.close()


def values(data: PartitionData) -> list[bytes | None]:
    batches = [bytes(part) for part in data.records or ()]
    return [record.value for record in decode(batches).records()]


async def test_a_consumer_walks_from_the_store_to_the_tail(scene: Scene) -> None:
    (first,) = await scene.fetch((COLD, 0))
    assert values(first) == [b"cold 0", b"cold 1", b"cold 2"]
    assert (first.log_start_offset, first.high_watermark) == (0, 4)
    (second,) = await scene.fetch((COLD, 3))
    assert values(second) == [b"tail"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that answers, if not at once, is waited for however busy the machine is."""
    monkeypatch.setattr(fetch_module, "_COLD_WAIT_S_MIN", 60)


@pytest.mark.usefixtures("patient")
async def test_cold_and_hot_partitions_come_together(scene: Scene) -> None:
    for order in ([HOT, COLD], [COLD, HOT]):
        found = await scene.fetch(*((index, 1 if index == COLD else 0) for index in order))
        assert [data.partition_index for data in found] == order
        last = {HOT: b"hot", COLD: b"cold 2"}
        assert [values(data)[-1] for data in found] == [last[index] for index in order]
        assert [data.error_code for data in found] == [ErrorCode.NONE] * 2


async def test_a_slow_store_delays_neither_hot_fetches_nor_appends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "WAIT_MS_MAX", 300_000)
    # 1. More fetches hang in the store than there are threads for them.
    scene.copies.gate.clear()
    hanging = [
        asyncio.ensure_future(scene.fetch((COLD, offset), max_wait_ms=300_000))
        for offset in (0, 1, 2)
    ]
    assert await asyncio.to_thread(scene.copies.waiting.wait, 30)
    # 2. Whoever reads what is here, or appends, does not notice.
    (hot,) = await asyncio.wait_for(scene.fetch((HOT, 0)), PATIENCE_S)
    assert values(hot) == [b"hot"]
    await asyncio.wait_for(scene.produce(COLD, b"more"), PATIENCE_S)
    # 3. A fetch of both gets what is here, and goes without the rest.
    both = await asyncio.wait_for(scene.fetch((COLD, 0), (HOT, 0)), PATIENCE_S)
    assert [values(data) for data in both] == [[], [b"hot"]]
    assert (both[0].error_code, both[0].high_watermark) == (ErrorCode.NONE, 5)
    # 4. Those that waited get it all once the store answers.
    scene.copies.gate.set()
    found = [(await each)[0] for each in hanging]
    assert [values(data)[-1] for data in found] == [b"cold 2"] * 3
    assert scene.handler._cold_pages == {}


async def test_a_client_that_did_not_wait_joins_the_read_under_way(scene: Scene) -> None:
    scene.copies.gate.clear()
    for _ in range(3):
        (none,) = await scene.fetch((COLD, 0), max_wait_ms=0)
        assert values(none) == []
    assert len(scene.handler._cold_pages) == 1
    waiting = asyncio.ensure_future(scene.fetch((COLD, 0)))
    scene.copies.gate.set()
    (found,) = await waiting
    assert values(found) == [b"cold 0", b"cold 1", b"cold 2"]


@pytest.mark.usefixtures("patient")
async def test_a_store_that_fails_is_an_error_of_its_partition_alone(scene: Scene) -> None:
    scene.copies.refusal = StoreUnavailable("file:///nowhere", "told to fail")
    cold, hot = await scene.fetch((COLD, 0), (HOT, 0))
    assert cold.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert values(hot) == [b"hot"]


async def test_reads_from_the_store_have_threads_of_their_own(scene: Scene) -> None:
    names: list[str] = []
    get = scene.copies.get

    def noted(key: str) -> object:
        names.append(threading.current_thread().name)
        return get(key)

    scene.copies.get = noted  # type: ignore[assignment,method-assign]
    await scene.fetch((COLD, 0))
    driver = scene.storage.partition("t", COLD).driver
    shard = scene.storage.shard("t", COLD)
    await driver.read_by_offset(shard, 0, max_records=10, max_bytes=1000)
    await driver.read_by_tag(shard, b"none", 0, max_records=10, max_bytes=1000)
    await driver.find_offset(shard, 0, committed=False)
    assert await scene.storage.timestamp_of("t", COLD, 0) >= 0
    with pytest.raises(KeyNotFound):
        await driver.read_by_key(shard, b"none")
    assert names
    assert {name.split("_")[0] for name in names} == {"firn-cold"}
    assert await scene.storage.offset_at("t", COLD, 0) == 0
