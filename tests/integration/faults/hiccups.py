"""Single operations on a small prepared store, during which system calls fail once or a few times.

The process goes on. What it shows afterwards must be what another opening of the directory finds:
a change that two stores hold either happened in both or in neither, whatever the caller was told.
"""

from __future__ import annotations

import errno
import zlib
from contextlib import suppress
from pathlib import Path

from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.disk import KeyValueStore
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.errors import DiskFull, StorageFailed
from firnmq.record import NewRecord
from firnmq.server import LocalStore, Store
from tests.integration.faults.metadata import all_shards
from tests.integration.faults.operations import OPERATIONS, SHARED_FILE, Scene
from tests.integration.faults.shim import Calls, Faults
from tests.integration.faults.writer import Reporter

_WAIT_S = 60.0
_WRITES = 40
"""More system calls than it takes to store a request."""
Shown = dict[str, tuple[int, int, list[tuple[int, int]]]]
"""Of every shard: its start, its end, and offsets and checksums of its records."""


def operate(
    descriptor: int, path: str, operation: str, engine: str, place: str, after: int, limit: int
) -> None:
    """Performs an operation, of whose system calls on files at `place` some fail."""
    scene = Scene(Path(path), Reporter(descriptor), 1_000_000)
    for name in OPERATION_TOPICS:
        scene.store.topic(name).read(0)  # Opening the shard is another operation.
    if operation in _SETUPS:
        _SETUPS[operation](scene)
    faults = Faults.of_this_process()
    faults.fail(Calls.ALL, f"{path}{place}", errno.EIO, after=after, limit=limit)
    try:
        HICCUP_OPERATIONS[operation](scene, engine)
    except StorageFailed as error:
        scene.reporter.say("refused", str(error))
    compacted_count = scene.local.compaction_counts()["EngineSegment"].records_in
    is_hit = faults.matched_count > after
    faults.lift()
    scene.local.kv.sync_late()  # Both as the housekeeper of a node does.
    scene.local.housekeep()
    check_agreement(scene.local, path, is_lossy=operation == "spill")
    scene = Scene(Path(path), scene.reporter, 2_000_000)
    work_on(scene)
    check_agreement(scene.local, path, is_lossy=True)
    if not is_hit:
        assert operation != "compact" or compacted_count == 32, compacted_count
        scene.reporter.say("complete")


def _drop_spilled(scene: Scene, engine: str) -> None:
    """Drops one spilled segment and a part of the next."""
    scene.store.topic(engine).delete_before(20)


def _set_up_compaction(scene: Scene) -> None:
    scene.create("compacted", **_COMPACTING)
    records = [NewRecord(key=b"%d" % number, value=b"value") for number in range(8)]
    for _ in range(4):
        scene.store.topic("compacted").append(records, shard=0)
        scene.roll("compacted")


def _compact(scene: Scene, engine: str) -> None:
    scene.local.housekeep()


_COMPACTING = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "min.compaction.lag.ms": 0,
}
_SETUPS = {"compact": _set_up_compaction}
HICCUP_OPERATIONS = {**OPERATIONS, "drop spilled": _drop_spilled, "compact": _compact}
OPERATION_TOPICS = ("EngineSegment", "EngineRocksDB", SHARED_FILE, "EngineMemory")


def work_on(scene: Scene) -> None:
    """Everything works that worked before."""
    for topic in scene.store.topics():
        value = NewRecord(key=b"key", value=b"value")
        scene.store.topic(topic.name).append(value, shard=0)
        scene.roll(topic.name)
        end = scene.local.engines[topic.config.storage_type].bounds(topic.shard_name(0))[1]
        scene.store.topic(topic.name).delete_before(end - 1)
    scene.local.housekeep()


def check_agreement(local: LocalStore, path: str, *, is_lossy: bool) -> None:
    """What the process shows is what is on disk, no more and no less."""
    local.cache.wait_for_revision(local.meta.range("").revision, _WAIT_S)
    before = shown(local)
    findings = [
        str(finding)
        for spec in all_shards(local)
        for finding in local.verifier.verify(spec.name).findings
    ]
    assert not findings, findings
    left = [meta for spec in all_shards(local) for meta in deleted(local, spec.uid)]
    assert not left, f"nobody has removed what is left of {left}"
    Store(local).close()
    with Store(LocalStore(Path(path), background=False)) as store:
        after = shown(store.local)
    for name in before.keys() | after.keys():
        if is_lossy and name.startswith("EngineMemory"):
            continue
        assert before.get(name) == after.get(name), f"{name}: {before.get(name)} {after.get(name)}"


def deleted(local: LocalStore, uid: int) -> list[SegmentMeta]:
    return [meta for meta in local.state.chain(uid) if meta.state is SegmentState.DELETED]


def shown(local: LocalStore) -> Shown:
    """Every shard's start, end and records."""
    found: Shown = {}
    for topic in local.catalog.topics():
        engine = local.engines[topic.config.storage_type]
        for seq in range(topic.shard_count):
            shard = topic.shard_name(seq)
            start, end = engine.bounds(shard)
            records = []
            if start < end:
                page = engine.read_by_offset(shard, start, max_records=2**31, max_bytes=2**31 - 1)
                records = [
                    (record.offset, zlib.crc32(record.value or b"")) for record in page.records()
                ]
            found[f"{topic.name}/{seq}"] = start, end, records
    return found


def producer_ids(descriptor: int, path: str) -> None:
    """No id is given out twice, although the first reservation failed."""
    faults = Faults.of_this_process()
    kv = KeyValueStore(Path(path))
    ids = ProducerIds(kv)
    given = []
    for calls in (Calls.WRITE, Calls.SYNC):
        faults.fail(calls, path, errno.ENOSPC, limit=1)
        for _ in range(1_001):  # Beyond what one reservation covers.
            try:
                given.append(ids.new())
            except DiskFull:
                continue
        faults.lift()
    kv.close()
    kv = KeyValueStore(Path(path))
    ids = ProducerIds(kv)
    given += [ids.new() for _ in range(1_500)]
    kv.close()
    assert len(set(given)) == len(given), "an id was given out twice"


def whole_requests(descriptor: int, path: str, engine: str) -> None:
    """A large request is stored whole or not at all, whichever write finds the disk full."""
    faults, count = Faults.of_this_process(), 30_000
    records = [NewRecord(value=b"%d" % number) for number in range(count)]
    options = {"storage.type": engine, "segment.bytes": 65_536}
    for after in range(_WRITES):
        directory = Path(path) / f"{after}"
        with Store(LocalStore(directory, background=False)) as store:
            topic = store.create_topic("t", options=options)
            topic.append(b"first")
            calls = Calls.WRITE | Calls.SYNC
            faults.fail(calls, str(directory), errno.ENOSPC, after=after, limit=1)
            with suppress(StorageFailed):
                topic.append(records)
            faults.lift()
            ends = {shown(store.local)["t/0"][1] + 1}
            topic.append(b"last")
            ends.add(shown(store.local)["t/0"][1])
        if engine != "EngineMemory":
            with Store(LocalStore(directory, background=False)) as store:
                ends.add(shown(store.local)["t/0"][1])
        assert ends in ({2}, {2 + count}), f"{ends} after {after} calls"
