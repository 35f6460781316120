"""StorageDriverManager: drivers made when needed, records sent to their shards, topics whole."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import firnmq
from firnmq.adapter import StorageAdapter, manager
from firnmq.adapter.catalog import Topic
from firnmq.adapter.foreign import ForeignAdapter
from firnmq.adapter.manager import shard_of_key
from firnmq.config import TopicConfig
from firnmq.disk import run_blocking
from firnmq.errors import (
    AlreadyExists,
    Closed,
    InvalidArgument,
    KeyNotFound,
    LimitExceeded,
    ShardNotFound,
    StorageFailed,
    StorageTypeNotFound,
    TopicNotFound,
)
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import FakeClock
from tests.unit.adapter.dict_adapter import DictAdapter

MEMORY = TopicConfig(storage_type="EngineMemory")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path, clock=FakeClock(), background=False)
    yield store
    store.close()


def create(store: LocalStore, name: str, shards: int = 1, config: TopicConfig = MEMORY) -> Topic:
    return run_blocking(store.manager.create_topic(name, shards, config))


def test_drivers_are_made_on_first_use_and_kept(store: LocalStore) -> None:
    made: list[DictAdapter] = []

    def factory() -> StorageAdapter:
        made.append(DictAdapter())
        return made[-1]

    store.manager.register("Mine", factory)
    assert made == []
    first = store.manager.driver("Mine")
    assert store.manager.driver("Mine") is first
    assert len(made) == 1
    assert "Mine" in store.manager.storage_types()


def test_one_driver_is_made_however_many_ask(store: LocalStore) -> None:
    made: list[DictAdapter] = []
    barrier = threading.Barrier(8)

    def factory() -> StorageAdapter:
        made.append(DictAdapter())
        return made[-1]

    def ask() -> None:
        barrier.wait()
        store.manager.driver("Mine")

    store.manager.register("Mine", factory)
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_names_of_storage_types_are_taken_once(store: LocalStore) -> None:
    for name in ("EngineMemory", "EngineSegment"):
        with pytest.raises(AlreadyExists):
            store.manager.register(name, DictAdapter)
    with pytest.raises(StorageTypeNotFound):
        store.manager.driver("Nobody")
    with pytest.raises(StorageTypeNotFound):
        create(store, "t", config=TopicConfig(storage_type="Nobody"))
    assert store.catalog.topics() == store.catalog.unfinished() == []


def test_installed_packages_bring_storage_types(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint(
        name="Installed",
        value="tests.unit.adapter.dict_adapter:DictAdapter",
        group=manager.ENTRY_POINT_GROUP,
    )

    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints([entry]).select(**wanted)

    monkeypatch.setattr(manager, "entry_points", entry_points)
    assert "Installed" in store.manager.storage_types()
    create(store, "t", config=TopicConfig(storage_type="Installed"))
    assert run_blocking(store.manager.write("t", [NewRecord(value=b"v")]))[0].base_offset == 0


def test_records_with_a_key_go_to_the_shard_of_their_key(store: LocalStore) -> None:
    create(store, "t", 5)
    keys = [b"key-%d" % number for number in range(50)]
    for key in keys:
        (written,) = run_blocking(store.manager.write("t", [NewRecord(value=b"v", key=key)]))
        assert written.shard == shard_of_key(key, 5)
    assert {shard_of_key(key, 5) for key in keys} == set(range(5))


def test_the_shard_of_a_key_never_changes() -> None:
    """Stored data depends on it: these numbers are forever."""
    assert [shard_of_key(key, 7) for key in (b"", b"a", b"firn", b"\xff" * 10)] == [0, 4, 0, 5]


def test_records_without_a_key_go_to_the_shards_in_turn(store: LocalStore) -> None:
    create(store, "t", 3)
    shards = [
        run_blocking(store.manager.write("t", [NewRecord(value=b"v")] * 2))[0].shard
        for _ in range(9)
    ]
    assert sorted(shards) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert shards[:3] == shards[3:6] == shards[6:]


def test_a_request_may_be_spread_over_shards(store: LocalStore) -> None:
    create(store, "t", 3)
    records = [NewRecord(value=b"%d" % number, key=b"%d" % number) for number in range(30)]
    written = run_blocking(store.manager.write("t", records))
    assert sum(each.next_offset - each.base_offset for each in written) == 30
    assert len({each.shard for each in written}) == len(written)


def test_a_refused_request_stores_nothing_in_any_shard(store: LocalStore) -> None:
    config = TopicConfig(
        storage_type="EngineMemory", max_record_bytes=2_000, max_batch_bytes=100_000
    )
    topic = create(store, "t", 2, config)
    keys = {shard_of_key(key, 2): key for key in (b"k%d" % number for number in range(20))}
    small = NewRecord(key=keys[0], value=b"v")
    for large in (
        [NewRecord(key=keys[1], value=b"v" * 3_000)],
        [NewRecord(key=keys[1], value=b"v" * 1_500)] * 100,
    ):
        for records in ([small, *large], [*large, small]):
            with pytest.raises(LimitExceeded):
                run_blocking(store.manager.write("t", records))
    for shard in range(2):
        assert run_blocking(store.manager.bounds(topic, shard)) == (0, 0)


@pytest.mark.parametrize("shard", [-1, 3, True, "0", 1.0])
def test_a_shard_that_is_not_there(store: LocalStore, shard: int) -> None:
    create(store, "t", 3)
    with pytest.raises(ShardNotFound):
        run_blocking(store.manager.write("t", [NewRecord(value=b"v")], shard))


def test_a_topic_is_made_once(store: LocalStore) -> None:
    create(store, "t")
    with pytest.raises(AlreadyExists):
        create(store, "t")
    assert len(store.engines["EngineMemory"].list_shard()) == 1


@pytest.mark.parametrize(("name", "shards"), [("", 1), ("a/b", 1), ("t", 0), ("t", -1), ("t", "1")])
def test_a_topic_that_cannot_be_meant(store: LocalStore, name: str, shards: int) -> None:
    with pytest.raises(InvalidArgument):
        create(store, name, shards)
    assert store.catalog.topics() == []


def test_a_creation_that_fails_leaves_nothing(store: LocalStore) -> None:
    adapter = DictAdapter()
    adapter.fails_on = "_3"
    store.manager.register("Mine", lambda: adapter)
    with pytest.raises(OSError):
        create(store, "t", 5, TopicConfig(storage_type="Mine"))
    assert adapter.shards == {}
    with pytest.raises(TopicNotFound):
        store.catalog.get("t")
    adapter.fails_on = None
    create(store, "t", 5, TopicConfig(storage_type="Mine"))
    assert len(adapter.shards) == 5


def test_a_creation_that_fails_in_an_engine_leaves_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = store.engines["EngineSegment"]
    create_shards = engine.create_shards

    def failing(names: Sequence[str], config: TopicConfig, topic_id: str) -> object:
        create_shards(names[:2], config, topic_id)
        raise StorageFailed(names[2], OSError(5, "Input/output error"))

    monkeypatch.setattr(engine, "create_shards", failing)
    config = TopicConfig(storage_type="EngineSegment")
    with pytest.raises(StorageFailed):
        create(store, "t", 4, config)
    assert engine.list_shard() == []
    assert store.catalog.topics() == store.catalog.unfinished() == []
    monkeypatch.undo()
    assert create(store, "t", 4, config).shard_count == 4


async def test_two_creations_of_one_name(store: LocalStore) -> None:
    done = await asyncio.gather(
        *(store.manager.create_topic("t", 3, MEMORY) for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(each, Topic) for each in done) == 1
    assert sum(isinstance(each, AlreadyExists) for each in done) == 3
    assert len(store.engines["EngineMemory"].list_shard()) == 3


def test_a_users_adapter_serves_threads(tmp_path: Path) -> None:
    with firnmq.open(tmp_path, adapters={"Mine": DictAdapter}) as store:
        topic = store.create_topic("t", options={"storage.type": "Mine"})
        topic.append([NewRecord(value=b"a", key=b"k", tags=("red",), timestamp_ms=5)])
        topic.append(["b", b"c"])
        assert [record.value for record in topic.read()] == [b"a", b"b", b"c"]
        assert topic.read_by_key("k").value == b"a"
        assert [record.offset for record in topic.read_by_tag("red")] == [0]
        assert topic.offset_at(1) == 0
        topic.commit("g", {0: 2})
        assert topic.committed("g") == {0: 2}
        topic.delete_by_offset(1)
        topic.delete_by_key("k")
        assert [record.value for record in topic.records()] == [b"c"]
        with pytest.raises(KeyNotFound):
            topic.read_by_key("k")
        with pytest.raises(InvalidArgument):
            topic.roll()
        driver = store.local.manager.driver("Mine")
        assert isinstance(driver, ForeignAdapter)
        handle = topic
    with pytest.raises(Closed):
        handle.read()
    assert not [each for each in threading.enumerate() if each.name == "firn-adapter"]


async def test_a_users_adapter_serves_asyncio(tmp_path: Path) -> None:
    adapter = DictAdapter()
    async with await firnmq.open_async(tmp_path, adapters={"Mine": lambda: adapter}) as store:
        topic = await store.create_topic("t", shards=2, options={"storage.type": "Mine"})
        await asyncio.gather(*(topic.append(b"%d" % number) for number in range(20)))
        assert sum(map(len, adapter.shards.values())) == 20
        assert len(await topic.read(shard=0)) == 10
        await store.delete_topic("t")
        assert adapter.shards == {}
