"""A process that cannot read some of its files: every way to read raises a typed error."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import firnmq
from firnmq.adapter import EngineStorageAdapter
from firnmq.config import StoreConfig
from firnmq.engines.api import AdapterOffsetStrategy, Engine
from firnmq.errors import FirnError, StorageFailed
from firnmq.record import NewRecord
from firnmq.server import Store
from tests.integration.faults.shim import Calls, Faults

COUNT, KEYS = 400, 7
_BYTES = 100_000_000
_RECORDS = [
    NewRecord(
        key=b"old" if number < 20 else b"key-%d" % (number % KEYS),
        value=b"%d" % number * 500,
        headers=(("tag", b"even" if number % 2 else b"odd"),),
        timestamp_ms=1_000_000 + number,
    )
    for number in range(COUNT)
]


def ways(engine: Engine, shard: str) -> dict[str, Callable[[], object]]:
    """Every read that an engine has, of the oldest records."""
    limits = {"max_records": COUNT, "max_bytes": _BYTES}
    earliest = AdapterOffsetStrategy.EARLIEST

    def stored(*, ranges: bool) -> object:
        return engine.read_stored(shard, 0, max_bytes=_BYTES, committed=True, ranges=ranges)

    return {
        "by offset": lambda: engine.read_by_offset(shard, 0, **limits),
        "batches": lambda: engine.read_batches(shard, 0, max_bytes=_BYTES),
        "stored": lambda: stored(ranges=False),
        "by key": lambda: engine.read_by_key(shard, b"old"),
        "history of a key": lambda: engine.read_key_history(shard, b"old", 0, **limits),
        "by tag": lambda: engine.read_by_tag(shard, b"odd", 0, **limits),
        "without waiting": lambda: engine.read_stored_nowait(
            shard, 0, max_bytes=_BYTES, committed=True, ranges=False
        ),
        "by time": lambda: engine.get_offset_by_timestamp(shard, 1_000_050, earliest),
    }


def local_files(descriptor: int, path: str, storage_type: str) -> None:
    """1. A shard is filled and opened again. 2. Its files fail. 3. They can be read again."""
    config = StoreConfig(memory_bytes=256 * 1024)
    options = {"storage.type": storage_type, "segment.bytes": 65_536}
    is_memory = storage_type == "EngineMemory"
    if is_memory:
        options["memory.overflow"] = "spill"
    store = firnmq.open(path, config=config)
    _fill(store, options)
    if not is_memory:
        store.close()
        store = firnmq.open(path, config=config)
    engine, shard = _engine(store)
    engine.bounds(shard)
    faults = Faults.of_this_process()
    faults.fail(Calls.READ, path, errno.EIO)
    for name, read in ways(engine, shard).items():
        error = _error_of(read)
        if name == "without waiting":
            assert error is None, "another read tells of it"
            continue
        assert isinstance(error, StorageFailed), f"{name}: {error!r}"
        assert error.shard == shard, f"{name}: {error!r}"
        assert "input/output error" in str(error.cause).lower(), f"{name}: {error!r}"
    error = _error_of(lambda: store.topic("t").read(0))
    assert isinstance(error, StorageFailed), repr(error)
    assert error.shard == "shard 0 of topic 't'", error
    faults.lift()
    for read in ways(engine, shard).values():
        read()
    engine.housekeep()
    assert engine.status(shard).failure is None, engine.status(shard)
    store.close()


def cold_files(descriptor: int, path: str, failing: str) -> None:
    """The same of history that is in an object store, which is a folder here, and in the cache. A
    cache that cannot be read is done without."""
    tier = Path(path) / "tier"
    tier.mkdir(parents=True)
    store = firnmq.open(f"{path}/data", tiering=tier.as_uri())
    options = {"tiering": "on", "local.retention.ms": 0, "segment.bytes": 65_536}
    _fill(store, options)
    store.topic("t").roll()
    store.upload()
    mover = store.local.mover
    engine, shard = _engine(store)
    while not engine.reads_cold(shard, COUNT - 1):
        mover.work()
    if failing == "cache":
        for read in ways(engine, shard).values():
            read()
        assert store.local.tier is not None
        store.local.tier.cold.flush()
    store.close()
    store = firnmq.open(f"{path}/data", tiering=tier.as_uri())
    engine, shard = _engine(store)
    engine.bounds(shard)
    faults = Faults.of_this_process()
    faults.fail(Calls.READ, "/tier-cache/" if failing == "cache" else str(tier), errno.EIO)
    for name, read in ways(engine, shard).items():
        error = _error_of(read)
        if failing == "cache" or name == "without waiting":
            assert error is None, f"{name}: {error!r}"
        else:
            assert isinstance(error, FirnError), f"{name}: {error!r}"
            assert "input/output error" in str(error).lower(), f"{name}: {error!r}"
    faults.lift()
    for read in ways(engine, shard).values():
        read()
    store.close()


def _fill(store: Store, options: dict[str, object]) -> None:
    topic = store.create_topic("t", options={"tag.headers": "tag", **options})
    for at in range(0, COUNT, 20):
        topic.append(_RECORDS[at : at + 20], shard=0)


def _engine(store: Store) -> tuple[Engine, str]:
    topic = store.local.catalog.get("t")
    driver = store.local.manager.driver_of("t")
    assert isinstance(driver, EngineStorageAdapter)
    return store.local.engines[topic.config.storage_type], topic.shard_name(0)


def _error_of(read: Callable[[], object]) -> Exception | None:
    try:
        read()
    except Exception as error:
        return error
    return None
