"""Interfaces of storage are narrow; a backend is used by what it offers, not by its class."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

import firnmq
from firnmq.adapter import (
    BatchStorage,
    EngineStorageAdapter,
    LogAdmin,
    StorageAdapter,
    wait_for_append,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.config import TopicConfig
from firnmq.engines import Acks
from firnmq.errors import InvalidArgument
from firnmq.record import NewRecord, encode
from firnmq.server import LocalStore
from firnmq.testing import FakeClock
from tests.unit.adapter.dict_adapter import DictAdapter

SOURCE = Path(firnmq.__file__).parent
OWN = TopicConfig(storage_type="Own")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path, clock=FakeClock(), background=False)
    yield store
    store.close()


def operations(interface: type) -> set[str]:
    return {name for name in vars(interface) if not name.startswith("_")}


def test_interfaces_are_narrow() -> None:
    assert len(operations(StorageAdapter)) == 13 + len({"watch", "bounds"})
    assert len(operations(BatchStorage)) <= 10
    assert len(operations(LogAdmin)) <= 10


def test_nothing_asks_whether_a_driver_is_of_our_engines() -> None:
    asking = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and "EngineStorageAdapter" in ast.unparse(node)
    ]
    assert asking == []


def test_an_adapter_without_an_operation_is_refused_by_its_name(store: LocalStore) -> None:
    class Half:
        async def write(self, shard: str, record: NewRecord) -> int:
            return 0

    store.manager.register("Half", Half)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"Half.*lacks batch_write, bounds, .*watch"):
        store.manager.driver("Half")


async def test_an_own_adapter_without_batches_is_told_apart(store: LocalStore) -> None:
    store.manager.register("Own", DictAdapter)
    await store.manager.create_topic("t", 1, OWN)
    driver = store.manager.driver_of("t")
    assert driver.batches is None
    assert driver.logs is None
    with pytest.raises(InvalidArgument, match="has no batches"):
        KafkaStorage(store.manager).partition("t", 0)


async def test_an_own_adapter_is_watched(store: LocalStore) -> None:
    adapter = DictAdapter()
    store.manager.register("Own", lambda: adapter)
    topic = await store.manager.create_topic("t", 1, OWN)
    driver, shard = store.manager.driver_of("t"), topic.shard_name(0)
    waiting = asyncio.ensure_future(wait_for_append([(driver, shard, 0)], 30))
    await store.manager.write("t", [NewRecord(value=b"v")])
    await asyncio.wait_for(waiting, 10)
    assert await store.manager.bounds(topic, 0) == (0, 1)
    await wait_for_append([(driver, shard, 0)], 30)  # It has grown already.
    assert adapter.watchers[shard] == [], "no watch is left"


async def test_kafka_uses_an_own_adapter_that_offers_batches(store: LocalStore) -> None:
    class Own(EngineStorageAdapter):
        """Somebody's adapter, which happens to keep its batches in our memory engine."""

    engine = store.engines["EngineMemory"]
    store.manager.register("Own", lambda: Own(engine, store.offsets, None))
    await store.manager.create_topic("t", 1, OWN)
    assert isinstance(store.manager.driver_of("t").batches, Own)
    assert store.manager.driver_of("t").logs is None
    storage = KafkaStorage(store.manager)
    batch = encode([NewRecord(value=b"v")], now_ms=7)
    acknowledged = await storage.submit("t", 0, batch, Acks.ALL, monotonic() + 60)
    assert (await acknowledged).base_offset == 0
    assert await storage.bounds("t", 0) == (0, 1)
    assert await storage.timestamp_of("t", 0, 0) == 7
    assert await storage.offset_at("t", 0, 7) == 0
    with pytest.raises(InvalidArgument, match="cannot do this"):
        await storage.delete_before("t", 0, 1)
