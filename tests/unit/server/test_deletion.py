"""Deleting records of a topic: what each way deletes, what it tells, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firnmq.adapter.manager import shard_of_key
from firnmq.disk import run_blocking
from firnmq.errors import (
    FirnError,
    InvalidArgument,
    InvalidRecord,
    KeyNotFound,
    OffsetOutOfRange,
    ShardNotFound,
    TopicNotFound,
)
from firnmq.record import NewRecord
from firnmq.server import LocalStore, Store, TopicHandle
from firnmq.server.deletion import OFFSETS_MAX, delete_records
from firnmq.server.documents import Deletion, ShardDeletion
from firnmq.testing import FakeClock
from tests.unit.adapter.dict_adapter import DictAdapter

TYPES = ["EngineMemory", "EngineRocksDB", "EngineSegment"]
SHARDS = 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    local = LocalStore(
        tmp_path, clock=FakeClock(), background=False, adapters={"Dictionary": DictAdapter}
    )
    with Store(local) as store:
        yield store


def filled(store: Store, storage_type: str = "EngineSegment", **options: object) -> TopicHandle:
    """Five records in each of three shards; keys `a` and `b` by turns, in all of them."""
    dotted = {name.replace("_", "."): value for name, value in options.items()}
    topic = store.create_topic("t", shards=SHARDS, options={"storage.type": storage_type, **dotted})
    for shard in range(SHARDS):
        topic.append(
            [NewRecord(key=b"ab"[at % 2 :][:1], value=b"%d" % at) for at in range(5)], shard=shard
        )
    return topic


def delete(store: Store, **wanted: Any) -> list[ShardDeletion]:
    return run_blocking(delete_records(store.local.manager, "t", Deletion(**wanted)))


def offsets_of(topic: TopicHandle) -> list[list[int]]:
    return [[each.offset for each in topic.records(shard=shard)] for shard in range(SHARDS)]


@pytest.mark.parametrize("storage_type", TYPES)
def test_a_key_goes_from_all_shards(store: Store, storage_type: str) -> None:
    """It is in all of them, whatever shard our own appends of it go to."""
    topic = filled(store, storage_type)
    done = delete(store, key="a")
    assert [(each.shard, each.deleted, each.key_below) for each in done] == [
        (shard, True, 5) for shard in range(SHARDS)
    ]
    assert [(each.start_offset, each.end_offset) for each in done] == [(0, 6)] * SHARDS
    assert offsets_of(topic) == [[1, 3]] * SHARDS
    for shard in range(SHARDS):
        with pytest.raises(KeyNotFound):
            topic.read_by_key("a", shard=shard)
    topic.append(NewRecord(key=b"a", value=b"new"), shard=2)
    assert topic.read_by_key("a", shard=2).value == b"new"


@pytest.mark.parametrize("storage_type", TYPES)
def test_an_empty_shard_notes_no_key(store: Store, storage_type: str) -> None:
    """Without an index of keys: neither one that never had records nor one that has none any more;
    a note would be heeded by every read of what comes later."""
    options = {"storage.type": storage_type, "index.key": False}
    topic = store.create_topic("t", shards=SHARDS, options=options)
    topic.append([NewRecord(key=b"a", value=b"0"), NewRecord(key=b"b", value=b"1")], shard=0)
    topic.append([NewRecord(key=b"a", value=b"0")], shard=1)
    topic.delete_before(1, shard=1)
    done = delete(store, key="a")
    assert [(each.deleted, each.key_below) for each in done] == [
        (True, 2),
        (False, None),
        (False, None),
    ]
    engine = store.local.engines[storage_type]
    notes = [
        engine.survey(topic.topic.shard_name(shard), lambda survey: survey.dead_keys)
        for shard in range(SHARDS)
    ]
    assert notes == [{b"a": 2}, {}, {}]
    for shard in range(SHARDS):
        topic.append([NewRecord(key=b"a", value=b"new")], shard=shard)
    assert offsets_of(topic) == [[1, 3], [1], [0]]


def test_a_key_goes_from_the_shard_that_is_named(store: Store) -> None:
    topic = filled(store)
    (done,) = delete(store, key="a", shard=1)
    assert (done.shard, done.deleted) == (1, True)
    assert offsets_of(topic) == [[0, 1, 2, 3, 4], [1, 3], [0, 1, 2, 3, 4]]


def test_a_key_that_no_shard_has(store: Store) -> None:
    topic = filled(store)
    done = delete(store, key="nobody")
    assert [(each.deleted, each.key_below) for each in done] == [(False, None)] * SHARDS
    assert offsets_of(topic) == [[0, 1, 2, 3, 4]] * SHARDS


def test_without_an_index_a_key_goes_all_the_same(store: Store) -> None:
    topic = filled(store, index_key=False)
    assert {each.key_below for each in delete(store, key="b")} == {5}
    assert offsets_of(topic) == [[0, 2, 4]] * SHARDS


@pytest.mark.parametrize("raw", [b"\xff\x00", b"", b"caf\xc3\xa9"])
def test_keys_are_bytes(store: Store, raw: bytes) -> None:
    from base64 import b64encode

    topic = filled(store)
    topic.append(NewRecord(key=raw, value=b"x"), shard=0)
    done = delete(store, key_base64=b64encode(raw).decode())
    assert [each.deleted for each in done] == [True, False, False]
    assert offsets_of(topic)[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("storage_type", TYPES)
def test_offsets_tell_which_of_them_went(store: Store, storage_type: str) -> None:
    topic = filled(store, storage_type)
    (first,) = delete(store, offsets=[3, 1, 1], shard=2)
    assert (first.deleted, first.offsets) == (True, [1, 3])
    (again,) = delete(store, offsets=[1, 4], shard=2)
    assert (again.deleted, again.offsets) == (True, [4])
    (nothing,) = delete(store, offsets=[1], shard=2)
    assert (nothing.deleted, nothing.offsets) == (False, [])
    assert offsets_of(topic) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 2]]


@pytest.mark.parametrize("storage_type", TYPES)
def test_before_moves_the_start_and_tells_where_it_was(store: Store, storage_type: str) -> None:
    topic = filled(store, storage_type)
    (moved,) = delete(store, before=2, shard=0)
    assert (moved.deleted, moved.start_before, moved.start_offset) == (True, 0, 2)
    (same,) = delete(store, before=1, shard=0)
    assert (same.deleted, same.start_before, same.start_offset) == (False, 2, 2)
    (below,) = delete(store, offsets=[0, 2], shard=0)
    assert below.offsets == [2]
    (all_of_it,) = delete(store, before=5, shard=0)
    assert (all_of_it.start_before, all_of_it.start_offset, all_of_it.end_offset) == (2, 5, 6)
    assert offsets_of(topic) == [[], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_a_topic_of_one_shard_needs_none_named(store: Store) -> None:
    topic = store.create_topic("t")
    topic.append(["a", "b", "c"])
    assert delete(store, offsets=[1])[0].offsets == [1]
    assert delete(store, before=1)[0].start_offset == 1
    assert [each.offset for each in topic.records(1)] == [2]


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({}, InvalidArgument, "give exactly one, not none of them"),
        ({"shard": 0}, InvalidArgument, "give exactly one"),
        ({"key": "a", "before": 1}, InvalidArgument, "not key and before"),
        ({"offsets": [1], "before": 1, "shard": 0}, InvalidArgument, "not offsets and before"),
        ({"key": "a", "key_base64": "YQ=="}, InvalidRecord, "both given"),
        ({"key_base64": "?"}, InvalidRecord, "key_base64"),
        ({"key_base64": "é"}, InvalidRecord, "key_base64"),
        ({"key": "a", "shard": 3}, ShardNotFound, "no shard '3' in topic 't'"),
        ({"key": "a", "shard": -1}, ShardNotFound, "no shard '-1'"),
        ({"offsets": [1]}, InvalidArgument, "shard: is needed with offsets, since t has 3 shards"),
        ({"before": 1}, InvalidArgument, "shard: is needed with before"),
        ({"offsets": [], "shard": 0}, InvalidArgument, "offsets: must be 1 to"),
        ({"offsets": [0] * (OFFSETS_MAX + 1), "shard": 0}, InvalidArgument, "not 100,001"),
        ({"offsets": [1, -1], "shard": 0}, InvalidArgument, "must be 0 or more, not -1"),
        ({"offsets": [1, 5], "shard": 0}, OffsetOutOfRange, r"offset 5 .* outside \[0, 5\)"),
        ({"offsets": [2**70], "shard": 0}, OffsetOutOfRange, "outside"),
        ({"before": -1, "shard": 0}, InvalidArgument, "before: must be 0 or more"),
        ({"before": 6, "shard": 0}, OffsetOutOfRange, "offset 6"),
    ],
)
def test_what_cannot_be_meant_deletes_nothing(
    store: Store, wanted: dict[str, Any], error: type[FirnError], words: str
) -> None:
    topic = filled(store)
    with pytest.raises(error, match=words):
        delete(store, **wanted)
    assert offsets_of(topic) == [[0, 1, 2, 3, 4]] * SHARDS


def test_a_topic_that_is_not_there(store: Store) -> None:
    with pytest.raises(TopicNotFound):
        delete(store, key="a")


def test_a_compacted_topic_keeps_its_start(store: Store) -> None:
    """It holds the newest record of every key; which of them may go is not a matter of offsets."""
    topic = filled(store, cleanup_policy="compact")
    with pytest.raises(InvalidArgument, match="delete by key or by offset, or set cleanup"):
        delete(store, before=2, shard=0)
    delete(store, key="a")
    delete(store, offsets=[1], shard=0)
    assert offsets_of(topic) == [[3], [1, 3], [1, 3]]


def test_one_that_is_compacted_and_retained_does_not(store: Store) -> None:
    filled(store, cleanup_policy="compact,delete")
    assert delete(store, before=2, shard=0)[0].start_offset == 2


def test_storage_of_a_users_own_is_asked_and_tells_nothing(store: Store) -> None:
    topic = filled(store, "Dictionary")
    assert {each.deleted for each in delete(store, key="a")} == {None}
    (done,) = delete(store, offsets=[1], shard=0)
    assert (done.deleted, done.offsets, done.end_offset) == (None, None, 5)
    assert offsets_of(topic) == [[3], [1, 3], [1, 3]]
    with pytest.raises(OffsetOutOfRange):
        delete(store, offsets=[5], shard=0)
    with pytest.raises(InvalidArgument, match="t: is kept by Dictionary, which cannot delete"):
        delete(store, before=2, shard=0)


def test_each_deletion_is_logged_without_the_key(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    filled(store)
    with caplog.at_level(logging.INFO, logger="firnmq.deletion"):
        delete(store, key="a", shard=1)
        delete(store, key="nobody", shard=2)
        delete(store, offsets=[1, 3], shard=0)
        delete(store, offsets=[1], shard=0)
        delete(store, before=4, shard=2)
    assert caplog.messages == [
        "records_deleted topic=t shard=1 by=key below=5",
        "records_not_in_log topic=t shard=2 by=key",
        "records_deleted topic=t shard=0 by=offsets first=1 last=3 count=2",
        "records_not_in_log topic=t shard=0 by=offsets",
        "records_deleted topic=t shard=2 by=before start=4 start_before=0",
    ]


def test_the_embedded_call_goes_to_all_shards_too(store: Store) -> None:
    topic = filled(store)
    other = (shard_of_key(b"a", SHARDS) + 1) % SHARDS
    topic.delete_by_key("a")
    with pytest.raises(KeyNotFound):
        topic.read_by_key("a", shard=other)
    assert offsets_of(topic) == [[1, 3]] * SHARDS
    topic.delete_by_key("b", shard=other)
    assert [len(each) for each in offsets_of(topic)].count(2) == SHARDS - 1
