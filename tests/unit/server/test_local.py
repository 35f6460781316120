"""A store opens whole or not at all, and finishes what was interrupted."""

import threading
from pathlib import Path

import pytest

from firnmq.adapter import Topic
from firnmq.config import StoreConfig, TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.upkeep import Upkeep
from firnmq.errors import AlreadyExists, Corruption, DirectoryInUse, TopicNotFound
from firnmq.meta import SqliteMetaStore
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import FakeClock
from tests.unit.adapter.dict_adapter import DictAdapter


def opened(path: Path, **options: object) -> LocalStore:
    return LocalStore(path, clock=FakeClock(), background=False, **options)  # type: ignore[arg-type]


def firn_threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name.startswith("firn-")}


def test_an_open_that_fails_lets_go_of_everything(tmp_path: Path) -> None:
    before = firn_threads()
    with pytest.raises(AlreadyExists):
        opened(tmp_path, adapters={"EngineMemory": DictAdapter})
    assert firn_threads() == before
    opened(tmp_path).close()
    meta = SqliteMetaStore(tmp_path / "meta.db")
    meta.txn(puts={"topics/broken": b"\xff"})
    meta.close()
    for _ in range(2):
        with pytest.raises(Corruption):
            opened(tmp_path)
    assert firn_threads() == before


def test_a_directory_is_open_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(DirectoryInUse):
        opened(tmp_path)
    store.close()
    store.close()
    opened(tmp_path).close()


def test_a_store_in_the_background_keeps_house_until_closed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert "firn-housekeeper" in firn_threads()
    store.close()
    assert "firn-housekeeper" not in firn_threads()


def test_a_defect_in_one_round_does_not_end_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    later = threading.Event()
    rounds = [0, 0]

    def count(which: int) -> None:
        rounds[which] += 1
        if min(rounds) > 3:
            later.set()

    def broken(*_: object) -> None:
        count(0)
        raise ZeroDivisionError("a defect")

    def also_broken(*_: object) -> None:
        count(1)
        raise ZeroDivisionError("another defect")

    config = StoreConfig(housekeeping_ms=2, state_sync_ms=1)
    store = LocalStore(tmp_path, config=config)
    monkeypatch.setattr(store, "housekeep", broken)
    monkeypatch.setattr(store.kv, "sync_late", also_broken)
    assert later.wait(60), rounds
    assert "firn-housekeeper" in firn_threads()
    monkeypatch.undo()
    store.close()
    assert "housekeeping_failed" in caplog.text
    assert "a defect" in caplog.text


def test_a_defect_of_one_shard_keeps_no_other_from_its_upkeep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one engine from its turn after another's; then it is raised."""
    store = opened(tmp_path)
    served: list[str] = []
    for storage_type, engine in store.engines.items():
        config = TopicConfig(storage_type=storage_type)
        for name in ("first", "second"):
            shard = f"{storage_type}-{name}"
            engine.create_shard(shard, config)
            run_blocking(engine.append(shard, [NewRecord(value=b"v")]))
    real = Upkeep._retain

    def retain(engine: Upkeep, log: ShardLog) -> None:
        served.append(log.spec.name)
        if log.spec.name.endswith("first"):
            raise ZeroDivisionError("a defect")
        real(engine, log)

    monkeypatch.setattr(Upkeep, "_retain", retain)
    with pytest.raises(ZeroDivisionError):
        store.housekeep()
    assert len(served) == 2 * len(store.engines)
    store.close()


@pytest.mark.parametrize("storage_type", ["EngineMemory", "EngineRocksDB", "EngineSegment"])
def test_a_half_made_and_a_half_deleted_topic_are_gone_after_an_open(
    tmp_path: Path, storage_type: str
) -> None:
    """1. one topic is whole, 2. one loses its last step of creation, 3. one all of its deletion."""
    config = TopicConfig(storage_type=storage_type)
    store = opened(tmp_path)
    engine = store.engines[storage_type]
    for name in ("whole", "deleted"):
        run_blocking(store.manager.create_topic(name, 2, config))
        run_blocking(store.manager.write(name, [NewRecord(value=b"v")], 0))
    half = Topic(name="half", topic_id="half-id", shard_count=3, config=config, created_ms=0)
    store.catalog.begin_creation(half)
    engine.create_shard(half.shard_name(0), config)
    run_blocking(engine.append(half.shard_name(0), [NewRecord(value=b"v")]))
    store.catalog.begin_deletion("deleted")
    store.close()

    store = opened(tmp_path)
    assert [topic.name for topic in store.catalog.topics()] == ["whole"]
    assert store.catalog.unfinished() == []
    assert {spec.name for spec in store.engines[storage_type].list_shard()} == set(
        store.catalog.get("whole").shard_names()
    )
    with pytest.raises(TopicNotFound):
        store.catalog.get("half")
    if storage_type == "EngineSegment":
        folders = {path.name for path in (tmp_path / "segments").iterdir()}
        assert folders == {store.catalog.get("whole").shard_name(0)}
    for name in ("half", "deleted"):
        run_blocking(store.manager.create_topic(name, 1, config))
    store.close()


def test_an_unfinished_topic_of_an_adapter_that_is_not_here_waits_for_it(tmp_path: Path) -> None:
    config = TopicConfig(storage_type="Mine")
    store = opened(tmp_path, adapters={"Mine": DictAdapter})
    run_blocking(store.manager.create_topic("t", 1, config))
    store.catalog.begin_deletion("t")
    store.close()
    store = opened(tmp_path)
    assert [topic.name for topic in store.catalog.unfinished()] == ["t"]
    store.close()
    store = opened(tmp_path, adapters={"Mine": DictAdapter})
    assert store.catalog.unfinished() == []
    store.close()
