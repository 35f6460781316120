"""Manifests: they come back whole, and bad ones are refused by name."""

import dataclasses
import random

import msgspec
import pytest

from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.errors import Corruption
from firnmq.tiering.format.manifest import (
    GroupsManifest,
    Manifest,
    SegmentManifest,
    ShardManifest,
    StoredOffset,
    TopicManifest,
)
from tests.unit.tiering.sources import sealed_meta

META = sealed_meta(
    transactions=(OpenTransaction(5, 1, 900),),
    max_timestamp=1234,
    sealed_ms=2000,
    first_expiry_ms=99,
    has_gaps=True,
    tombstone_count=4,
    compacted_ms=1500,
)
assert META.tier is not None
COPY = dataclasses.replace(META.tier, index_length=500, index_head_length=300)
WHERE = {"cluster": "c", "topic": "t", "topic_id": "1"}
SEGMENT = SegmentManifest.of(
    META,
    COPY,
    **WHERE,
    shard="1_0",
    index_crc=9,
    uploaded_ms=3000,
    producers=((5, b"\x00\xff"), (6, b"")),
)
SHARD = ShardManifest(
    **WHERE,
    shard="1_0",
    number=7,
    written_ms=1,
    start_offset=50,
    epoch=2,
    holes=(60, 61),
    dead_keys=((b"\xff\x00", 70),),
)
TOPIC = TopicManifest(
    **WHERE,
    number=1,
    written_ms=1,
    created_ms=0,
    shard_count=3,
    options={"tiering": "on", "retention.ms": None},
)
GROUPS = GroupsManifest(
    cluster=WHERE["cluster"],
    number=3,
    written_ms=2,
    groups={"grüppe": {"1_0": StoredOffset(50, 1), "1_2": StoredOffset(0, 2, 4, "noted")}},
)


@pytest.mark.parametrize("manifest", [SEGMENT, SHARD, TOPIC, GROUPS])
def test_manifests_come_back(manifest: Manifest) -> None:
    assert type(manifest).unpack(manifest.pack(), "object") == manifest


def test_a_segment_is_found_again_from_its_manifest_alone() -> None:
    found = SegmentManifest.unpack(SEGMENT.pack(), "object").meta()
    assert found.tier == dataclasses.replace(COPY, started_ms=3000, is_done=True)
    expected = dataclasses.replace(META, tier=found.tier, is_local=False)
    assert found == expected


def test_a_flipped_bit_is_found_or_changes_nothing() -> None:
    chance = random.Random(3)
    for manifest in (SEGMENT, SHARD, TOPIC, GROUPS):
        packed = manifest.pack()
        for _ in range(500):
            bad = bytearray(packed)
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            try:
                found = type(manifest).unpack(bad, "object")
            except Corruption:
                continue
            assert found == manifest


def test_every_truncation_is_found() -> None:
    packed = SHARD.pack()
    for size in range(len(packed)):
        with pytest.raises(Corruption):
            ShardManifest.unpack(packed[:size], "object")


def test_another_kind_and_another_version_are_refused() -> None:
    with pytest.raises(Corruption, match=r"'firn\.topic', not 'firn\.shard'"):
        ShardManifest.unpack(TOPIC.pack(), "object")
    frame = msgspec.json.decode(TOPIC.pack()) | {"version": 2}
    with pytest.raises(Corruption, match="version 2"):
        TopicManifest.unpack(msgspec.json.encode(frame), "object")


def test_unknown_fields_are_passed_over() -> None:
    from crc32c import crc32c

    frame = msgspec.json.decode(TOPIC.pack())
    body = msgspec.json.encode(frame["body"] | {"later": 1})
    frame["body"] = msgspec.Raw(body)
    frame["crc32c"] = f"{crc32c(body):08x}"
    assert TopicManifest.unpack(msgspec.json.encode(frame), "object") == TOPIC
