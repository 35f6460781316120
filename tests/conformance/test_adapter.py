"""The same engines through the StorageAdapter, as brokers and embedded users call them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firnmq.adapter import (
    BatchStorage,
    EngineStorageAdapter,
    ShardBounds,
    StorageAdapter,
    Written,
    wait_for_append,
)
from firnmq.adapter.manager import shard_of_key
from firnmq.config import TopicConfig
from firnmq.disk import FileRange, Ticket, run_blocking
from firnmq.engines import AdapterOffsetStrategy, Appended
from firnmq.errors import KeyNotFound, ShardNotFound, TopicNotFound
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import FakeClock
from firnmq.testing.appending import append_batch
from tests.conformance.lab import options_of

SHARD = "topic_0"


@pytest.fixture
async def store(storage_type: str, tmp_path: Path) -> AsyncIterator[LocalStore]:
    store = LocalStore(tmp_path, clock=FakeClock(), background=False)
    yield store
    store.close()


@pytest.fixture
async def adapter(store: LocalStore, storage_type: str) -> StorageAdapter:
    adapter = store.manager.driver(str(options_of(storage_type)["storage.type"]))
    await adapter.create_shard(SHARD, TopicConfig.from_options(options_of(storage_type)))
    return adapter


async def fill(adapter: StorageAdapter) -> None:
    await adapter.batch_write(
        SHARD,
        [
            NewRecord(value=b"a", key=b"k", tags=("red",), timestamp_ms=100),
            NewRecord(value=b"b", key=b"l", tags=("blue",), timestamp_ms=200),
            NewRecord(value=b"c", key=b"k", tags=("red", "blue"), timestamp_ms=300),
        ],
    )


async def test_the_driver_is_a_storage_adapter(adapter: StorageAdapter) -> None:
    assert isinstance(adapter, StorageAdapter)
    assert isinstance(adapter, EngineStorageAdapter)
    assert isinstance(adapter, BatchStorage)
    assert adapter.batches is adapter
    assert adapter.logs is adapter


async def test_bounds_and_watch(adapter: StorageAdapter) -> None:
    await fill(adapter)
    assert await adapter.bounds(SHARD) == (0, 3)
    ticket: Ticket[None] = Ticket()
    assert adapter.watch(SHARD, 2, ticket) is None, "it has grown already"
    end = adapter.watch(SHARD, 3, ticket)
    assert end is not None
    await adapter.write(SHARD, NewRecord(value=b"v"))
    await asyncio.wait_for(_result_of(ticket), 10)
    end()
    waiting = wait_for_append([(adapter, "gone", 0), (adapter, SHARD, 4)], 30)
    task = asyncio.ensure_future(waiting)
    await adapter.write(SHARD, NewRecord(value=b"v"))
    await asyncio.wait_for(task, 10)
    await wait_for_append([(adapter, SHARD, 5)], 0.01)  # Nothing comes: it returns in time.


async def _result_of(ticket: Ticket[None]) -> None:
    await ticket


async def test_shards(adapter: StorageAdapter) -> None:
    await fill(adapter)
    assert await adapter.list_shard() == [ShardBounds(name=SHARD, start_offset=0, end_offset=3)]
    await adapter.delete_shard(SHARD)
    assert await adapter.list_shard() == []
    with pytest.raises(ShardNotFound):
        await adapter.write(SHARD, NewRecord(value=b"v"))


async def test_writes(adapter: StorageAdapter) -> None:
    assert await adapter.write(SHARD, NewRecord(value=b"v")) == 0
    assert await adapter.batch_write(SHARD, [NewRecord(value=b"v")] * 3) == Appended(
        base_offset=1, next_offset=4
    )
    offsets = await asyncio.gather(
        *(adapter.write(SHARD, NewRecord(value=b"v")) for _ in range(50))
    )
    assert sorted(offsets) == list(range(4, 54))


async def test_reads(adapter: StorageAdapter) -> None:
    await fill(adapter)
    page = await adapter.read_by_offset(SHARD, 1, max_records=10, max_bytes=1000)
    assert [record.value for record in page] == [b"b", b"c"]
    page = await adapter.read_by_tag(SHARD, b"red", 0, max_records=10, max_bytes=1000)
    assert [record.value for record in page] == [b"a", b"c"]
    page = await adapter.read_by_key(SHARD, b"k")
    assert [record.value for record in page] == [b"c"]
    latest = AdapterOffsetStrategy.LATEST
    assert await adapter.get_offset_by_timestamp(SHARD, 150, latest) == 1
    assert await adapter.get_offset_by_timestamp(SHARD, 301, latest) == 3


async def test_deletes(adapter: StorageAdapter) -> None:
    await fill(adapter)
    await adapter.delete_by_offset(SHARD, 1)
    await adapter.delete_by_key(SHARD, b"k")
    page = await adapter.read_by_offset(SHARD, 0, max_records=10, max_bytes=1000)
    assert page.records() == []
    # An engine of ours has an entry for each deletion; another adapter need not.
    assert page.next_offset == 5 if isinstance(adapter, EngineStorageAdapter) else 3
    with pytest.raises(KeyNotFound):
        await adapter.read_by_key(SHARD, b"k")


async def test_group_offsets(adapter: StorageAdapter) -> None:
    assert await adapter.get_offset_by_group("g") == {}
    await adapter.commit_offset("g", {SHARD: 2, "other_0": 5})
    await adapter.commit_offset("g", {SHARD: 3})
    assert await adapter.get_offset_by_group("g") == {SHARD: 3, "other_0": 5}
    assert await adapter.get_offset_by_group("g2") == {}


async def test_what_only_engines_do(adapter: EngineStorageAdapter) -> None:
    await fill(adapter)
    page = adapter.read_stored(SHARD, 0, max_bytes=1000, committed=False, ranges=False)
    (batch,) = page.contents
    assert not isinstance(batch, FileRange)
    assert (await append_batch(adapter, SHARD, batch)).base_offset == 3
    await adapter.roll(SHARD)
    await adapter.write(SHARD, NewRecord(value=b"v"))
    await adapter.truncate(SHARD, 6)
    await adapter.delete_records_before(SHARD, 3)
    status = await adapter.status(SHARD)
    assert (status.start_offset, status.end_offset, len(status.segments)) == (3, 6, 2)


async def test_a_topic_from_end_to_end(store: LocalStore, storage_type: str) -> None:
    """1. made, 2. written by key and in turn, 3. read, 4. deleted, 5. gone."""
    manager = store.manager
    config = TopicConfig.from_options(options_of(storage_type))
    topic = await manager.create_topic("sales", 3, config)
    assert manager.catalog.topics() == [manager.catalog.get("sales")]

    keyed = [NewRecord(value=b"%d" % n, key=b"k%d" % (n % 10)) for n in range(100)]
    written = await manager.write("sales", keyed)
    assert sum(each.next_offset - each.base_offset for each in written) == 100
    assert await manager.write("sales", [NewRecord(value=b"v")], shard=2) == (
        Written(
            shard=2,
            base_offset=next((w.next_offset for w in written if w.shard == 2), 0),
            next_offset=1 + next((w.next_offset for w in written if w.shard == 2), 0),
        ),
    )

    driver = manager.driver_of("sales")
    for number in range(10):
        key = b"k%d" % number
        shard = topic.shard_name(shard_of_key(key, topic.shard_count))
        (record,) = (await driver.read_by_key(shard, key)).records()
        assert record.value == b"%d" % (90 + number)

    await manager.delete_topic("sales")
    with pytest.raises(TopicNotFound):
        await manager.write("sales", keyed)
    assert await driver.list_shard() == []


def test_the_same_without_an_event_loop(storage_type: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path, clock=FakeClock(), background=False)
    try:
        config = TopicConfig.from_options(options_of(storage_type))
        run_blocking(store.manager.create_topic("t", 1, config))
        run_blocking(store.manager.write("t", [NewRecord(value=b"v", key=b"k")]))
        driver = store.manager.driver_of("t")
        (shard,) = [each.name for each in run_blocking(driver.list_shard())]
        assert len(run_blocking(driver.read_by_key(shard, b"k"))) == 1
    finally:
        store.close()
