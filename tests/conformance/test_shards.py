"""Shards: made, listed, described, deleted."""

import pytest

from firnmq.config import TopicConfig
from firnmq.engines import AdapterOffsetStrategy
from firnmq.errors import AlreadyExists, Closed, KeyNotFound, ShardNotFound
from firnmq.record import NewRecord
from tests.conformance.lab import EVERYTHING, Lab, Shard, numbered


def test_shards_are_listed(own_lab: Lab) -> None:
    names = [own_lab.shard().name for _ in range(3)]
    assert [spec.name for spec in own_lab.engine.list_shard()] == names
    uids = [spec.uid for spec in own_lab.engine.list_shard()]
    assert len(set(uids)) == 3


def test_a_name_is_taken_once(shard: Shard) -> None:
    config = TopicConfig.from_options(shard.lab.options)
    with pytest.raises(AlreadyExists):
        shard.engine.create_shard(shard.name, config)


def test_status_describes_a_shard(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 1024})
    empty = shard.status
    assert (empty.start_offset, empty.end_offset, empty.length_bytes) == (0, 0, 0)
    assert (len(empty.segments), empty.failure) == (1, None)
    shard.append_each(numbered(20, size=200))
    full = shard.status
    assert full.spec.name == shard.name
    assert full.spec.config.segment_bytes == 1024
    raw = shard.engine.read_batches(shard.name, 0, max_bytes=EVERYTHING)
    assert full.length_bytes == sum(map(len, raw.batches))


def test_an_unknown_shard_is_not_found(lab: Lab) -> None:
    ghost = Shard(lab, "ghost_0")
    engine, name = lab.engine, ghost.name
    for operation in (
        lambda: ghost.append_values(b"v"),
        lambda: ghost.append_raw(b""),
        lambda: ghost.read(0),
        lambda: engine.read_batches(name, 0, max_bytes=1),
        lambda: ghost.by_key(b"k"),
        lambda: ghost.tagged("t"),
        lambda: engine.get_offset_by_timestamp(name, 0, AdapterOffsetStrategy.LATEST),
        lambda: ghost.delete(0),
        lambda: ghost.delete_key(b"k"),
        lambda: ghost.delete_before(0),
        lambda: ghost.truncate(0),
        lambda: ghost.roll(),
        lambda: ghost.status,
        lambda: engine.delete_shard(name),
    ):
        with pytest.raises((ShardNotFound,)):
            operation()


def test_a_deleted_shard_is_gone_for_good(own_lab: Lab) -> None:
    shard, other = own_lab.shard({"segment.bytes": 1024}), own_lab.shard()
    shard.append_each(numbered(20, size=200))
    other.append_values(b"stays")
    shard.engine.delete_shard(shard.name)
    for _ in range(2):
        with pytest.raises(ShardNotFound):
            shard.read(0)
        with pytest.raises(ShardNotFound):
            shard.append_values(b"v")
        assert [spec.name for spec in own_lab.engine.list_shard()] == [other.name]
        own_lab.reopen()


def test_a_shard_made_anew_under_an_old_name_is_empty(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 1024})
    for number in range(20):
        shard.append(NewRecord(value=b"%0200d" % number, key=b"k", tags=("t",)))
    shard.delete(3)
    shard.delete_key(b"k")
    shard.delete_before(2)
    shard.engine.delete_shard(shard.name)
    shard.engine.create_shard(shard.name, TopicConfig.from_options(lab.options))
    assert (shard.start, shard.end, shard.offsets(), shard.tagged("t")) == (0, 0, [], [])
    with pytest.raises(KeyNotFound):
        shard.by_key(b"k")
    shard.append(*[NewRecord(value=b"v", key=b"k")] * 6)
    assert shard.offsets() == list(range(6))
    assert shard.by_key(b"k").offset == 5


def test_deleting_a_shard_without_ever_using_it(own_lab: Lab) -> None:
    used = own_lab.shard({"memory.overflow": "spill"})
    used.append(*numbered(5))
    own_lab.reopen()
    own_lab.engine.delete_shard(used.name)
    assert own_lab.engine.list_shard() == []


def test_a_closed_store_says_so(own_lab: Lab) -> None:
    shard = own_lab.shard()
    shard.append_values(b"v")
    own_lab.store.close()
    own_lab.store.close()
    for operation in (
        lambda: shard.read(0),
        lambda: shard.append_values(b"v"),
        lambda: shard.by_key(b"k"),
        lambda: shard.delete(0),
        lambda: shard.roll(),
        lambda: shard.status,
        lambda: own_lab.shard(),
    ):
        with pytest.raises(Closed):
            operation()
    assert own_lab.store.file_statistics().open_files == 0
