"""The power goes before each operation of a disk during a roll: nothing acknowledged is lost."""

import random
from functools import partial
from pathlib import Path

import pytest

from firnmq.config import TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines.catalog.segments import SegmentState
from firnmq.engines.shardlog.rolling import RollState
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import CrashFiles, CrashKeyValueStore, CrashMetaStore, PowerCut

SHARD = "shard"
APPENDS = 10
WAIT_S = 60.0


def append(store: LocalStore, storage_type: str, number: int) -> int:
    record = NewRecord(value=(b"%d " % number).ljust(200, b"."), key=b"k%d" % (number % 3))
    return run_blocking(store.engines[storage_type].append(SHARD, [record])).base_offset


def work(store: LocalStore, storage_type: str, cut: PowerCut) -> int:
    """Appends across two rolls, and rolls once more; how many were acknowledged before the cut."""
    engine = store._log_engines[storage_type]
    count = 0
    for number in range(APPENDS):
        append(store, storage_type, number)
        if cut.has_come:
            break
        count += 1
        log = engine.log(SHARD)
        with log.lock:
            log.change_ended.wait_for(lambda log=log: log.rolling.state is RollState.IDLE, WAIT_S)
    if not cut.has_come:
        engine.roll(SHARD)
    if not cut.has_come:
        cut.happen()
    return count


@pytest.mark.parametrize("storage_type", ["EngineSegment", "EngineRocksDB"])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_cut_before_every_step(tmp_path: Path, storage_type: str, durability: str) -> None:
    options = {"storage.type": storage_type, "segment.bytes": 1024, "durability": durability}
    states = set()
    for after in range(0, 38, 1 if durability == "fsync" else 3):
        path, remains = tmp_path / f"{after}", tmp_path / f"{after}-remains"
        with_store = partial(LocalStore, background=False)
        store = with_store(path)
        store.engines[storage_type].create_shard(SHARD, TopicConfig.from_options(options))
        store.close()
        cut = PowerCut(path, remains, after=after, rng=random.Random(after))
        store = with_store(
            path,
            files=CrashFiles(cut),
            open_kv=partial(CrashKeyValueStore, cut=cut),
            open_meta=partial(CrashMetaStore, cut=cut),
        )
        count = work(store, storage_type, cut)
        store.close()
        store = with_store(remains)
        engine = store._log_engines[storage_type]
        if engine.list_shard():
            found = engine.read_by_offset(SHARD, 0, max_records=1000, max_bytes=2**30).records()
            values = [int(bytes(each.value or b"").split()[0]) for each in found]
            assert values == list(range(len(values))), f"cut before step {after}"
            assert durability == "os" or len(values) >= count, f"cut before step {after}"
            metas = [each.meta for each in engine.log(SHARD).segments]
            assert [each.state for each in metas[:-1]] == [SegmentState.SEALED] * (len(metas) - 1)
            states.add(len(metas))
            assert append(store, storage_type, len(values)) == len(values)
            assert not store.verifier.verify(SHARD).findings
        store.close()
    assert len(states) >= 3, "cuts came before and after rolls"
