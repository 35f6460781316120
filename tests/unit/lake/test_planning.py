"""Plans leave out what cannot hold anything wanted, and nothing else."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from firnmq.errors import InvalidArgument, ShardNotFound
from firnmq.lake.plans import planning
from firnmq.lake.plans.plan import Plan, ShardPlan, Split, Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, numbered
from tests.unit.lake.lake_lab import LakeTopic, read_all, rows

FIRST_MS = 1_700_000_000_000


def filled(lab: Lab, segments: int = 6, per_segment: int = 40, **options: object) -> LakeTopic:
    """Two shards; each segment has a key and a tag of its own, and some that all have."""
    dotted = {key.replace("_", "."): value for key, value in options.items()}
    topic = LakeTopic(lab, dotted, shards=2)
    for shard in topic.shards:
        for segment in range(segments):
            for n in range(0, per_segment, 4):
                at = segment * per_segment + n
                shard.append(
                    *(
                        NewRecord(
                            value=b"%d" % (at + i),
                            key=b"only-%d" % segment if n == 8 and i == 1 else b"k%d" % (n % 7),
                            tags=(f"tag-{segment}", "all") if n == 12 else ("all",) * (i % 2),
                            timestamp_ms=FIRST_MS + 1000 * (at + i),
                        )
                        for i in range(4)
                    )
                )
            if segment + 1 < segments:
                shard.roll()
    return topic


def keeps(wanted: Wanted) -> Callable[[dict[str, Any]], bool]:
    """What the reader should give, said in another way."""

    def keep(row: dict[str, Any]) -> bool:
        shard, time_ms = row["shard"], row["timestamp"] // 1000
        return (
            (wanted.shards is None or shard in wanted.shards)
            and row["offset"] >= wanted.start_offsets.get(shard, 0)
            and row["offset"] < wanted.end_offsets.get(shard, 2**63)
            and (wanted.min_timestamp_ms is None or time_ms >= wanted.min_timestamp_ms)
            and (wanted.end_timestamp_ms is None or time_ms < wanted.end_timestamp_ms)
            and (wanted.keys is None or row["key"] in wanted.keys)
            and (wanted.tags is None or not set(wanted.tags).isdisjoint(row["tags"]))
        )

    return keep


FILTERS = [
    Wanted(shards=(1,)),
    Wanted(start_offsets={0: 57, 1: 200}),
    Wanted(end_offsets={0: 57}, start_offsets={0: 55}),
    Wanted(min_timestamp_ms=FIRST_MS + 100_500),
    Wanted(end_timestamp_ms=FIRST_MS + 33_000),
    Wanted(min_timestamp_ms=FIRST_MS + 41_000, end_timestamp_ms=FIRST_MS + 47_000),
    Wanted(min_timestamp_ms=FIRST_MS + 10**9),
    Wanted(keys=(b"only-3",)),
    Wanted(keys=(b"only-3", b"only-1", b"nobody's")),
    Wanted(keys=(b"nobody's",)),
    Wanted(keys=(b"k0",), end_offsets={0: 90, 1: 3}),
    Wanted(tags=("tag-2",)),
    Wanted(tags=("tag-2", "tag-5")),
    Wanted(tags=("all",), keys=(b"k4", b"k5")),
    Wanted(tags=("none",)),
    Wanted(tags=("tag-4",), start_offsets={0: 175}, min_timestamp_ms=FIRST_MS),
]


@pytest.mark.parametrize("wanted", FILTERS, ids=range(len(FILTERS)))
def test_filters_give_exactly_what_is_wanted(lab: Lab, wanted: Wanted) -> None:
    topic = filled(lab)
    wanted = msgspec.json.decode(msgspec.json.encode(wanted), type=Wanted)
    expected = [row for row in topic.stored() if keeps(wanted)(row)]
    assert rows(topic.read(wanted)) == expected
    assert rows(topic.read(wanted, target_bytes=1)) == expected
    # Also by a plan for a reader that wants everything.
    assert rows(topic.read(wanted, plan=topic.plan())) == expected
    offsets = [(row["shard"], row["offset"]) for row in expected]
    found = rows(topic.read(wanted, ["offset", "shard"]))
    assert [(row["shard"], row["offset"]) for row in found] == offsets


def bases(plan: Plan, shard: int = 0) -> list[int]:
    return [segment.base_offset for segment in plan.shards[shard].segments]


def test_segments_that_cannot_have_it_are_left_out(lab: Lab) -> None:
    topic = filled(lab)
    assert bases(topic.plan()) == [0, 40, 80, 120, 160, 200]
    assert bases(topic.plan(Wanted(keys=(b"only-3",)))) == [120]
    assert bases(topic.plan(Wanted(keys=(b"only-3", b"only-5")))) == [120, 200]
    assert bases(topic.plan(Wanted(keys=(b"nobody's",)))) == []
    assert bases(topic.plan(Wanted(tags=("tag-4",)))) == [172]  # From its first batch on.
    assert bases(topic.plan(Wanted(min_timestamp_ms=FIRST_MS + 161_000)))[:1] == [160]
    assert bases(topic.plan(Wanted(start_offsets={0: 85}, end_offsets={0: 121}))) == [80, 120]
    assert bases(topic.plan(Wanted(start_offsets={0: 85})), shard=1) == [0, 40, 80, 120, 160, 200]
    # A key's newest record ends what has to be read.
    (segment,) = topic.plan(Wanted(keys=(b"only-3",))).shards[0].segments
    assert segment.end_offset == 130


def test_without_indexes_everything_may_hold_it(lab: Lab) -> None:
    topic = filled(lab, index_key="false", index_tag="false")
    for wanted in (Wanted(keys=(b"only-3",)), Wanted(tags=("tag-4",))):
        assert len(bases(topic.plan(wanted))) == 6
        assert rows(topic.read(wanted)) == [row for row in topic.stored() if keeps(wanted)(row)]


def test_reading_begins_where_the_index_says(lab: Lab) -> None:
    topic = LakeTopic(lab)
    for n in range(60):
        topic.shard.append(*numbered(100, timestamp_ms=FIRST_MS + n * 1000))
    topic.shard.roll()
    for wanted in (
        Wanted(start_offsets={0: 4500}),
        Wanted(min_timestamp_ms=FIRST_MS + 45_000),
    ):
        (segment,) = topic.plan(wanted).shards[0].segments
        assert 3000 < segment.base_offset <= 4500
        assert segment.position > 0
        assert segment.position + segment.length == segment.file_length
        assert segment.crc is None
        expected = [row for row in topic.stored() if keeps(wanted)(row)]
        assert rows(topic.read(wanted)) == expected


def test_a_shard_that_is_not_there(lab: Lab) -> None:
    topic = LakeTopic(lab)
    with pytest.raises(ShardNotFound):
        topic.plan(Wanted(shards=(0, 1)))


# Splits -------------------------------------------------------------------------------------------


def test_splits_hold_every_offset_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PART_BYTES", 20_000)
    topic = LakeTopic(lab, shards=2)
    rng = random.Random(7)
    for shard in topic.shards:
        for _ in range(25):
            for _ in range(rng.randrange(1, 30)):
                shard.append(*numbered(rng.randrange(1, 200), size=rng.randrange(1, 60)))
            shard.roll()
        shard.append(*numbered(3))
    plan = topic.plan()
    assert any(segment.points for shard in plan.shards for segment in shard.segments)
    for target_bytes in (1, 1_000, 20_000, 100_000, 10**9):
        splits = split_plan(plan, target_bytes=target_bytes)
        for shard, found in zip(plan.shards, (0, 1), strict=True):
            own = [split for split in splits if split.shard == found]
            assert own[0].start_offset == shard.start_offset
            assert own[-1].end_offset == shard.end_offset
            for before, after in itertools.pairwise(own):
                assert before.end_offset == after.start_offset
        assert rows(read_all(splits)) == topic.stored()
        if target_bytes >= 60_000:
            assert all(split.length <= target_bytes for split in splits)
    assert len(split_plan(plan, target_bytes=10**9)) == 2
    with pytest.raises(InvalidArgument):
        split_plan(plan, target_bytes=0)


def test_splits_of_a_range(lab: Lab) -> None:
    topic = filled(lab)
    wanted = Wanted(start_offsets={0: 50, 1: 239}, end_offsets={0: 130})
    plan = topic.plan()
    splits = split_plan(plan, wanted, target_bytes=1)
    assert [(each.shard, each.start_offset, each.end_offset) for each in splits] == [
        (0, 50, 80),
        (0, 80, 120),
        (0, 120, 130),
        (1, 239, 240),
    ]
    assert split_plan(plan, Wanted(shards=())) == []


def test_a_split_knows_what_concerns_it(lab: Lab) -> None:
    topic = filled(lab)
    topic.shard.delete(5, 45, 85)
    topic.shard.delete_key(b"k0")
    splits = [each for each in split_plan(topic.plan(), target_bytes=1) if each.shard == 0]
    assert [split.holes for split in splits[:4]] == [(5,), (45,), (85,), ()]
    assert all(split.dead_keys == ((b"k0", 241),) for split in splits)
    copied = [msgspec.json.decode(msgspec.json.encode(each), type=Split) for each in splits]
    assert copied == splits


def test_plans_without_anything(lab: Lab, tmp_path: Path) -> None:
    plan = Plan(cluster="c", topic="t", topic_id="i", made_ms=0, options={})
    assert split_plan(plan) == []
    empty = ShardPlan(shard=0, start_offset=5, end_offset=5)
    assert split_plan(msgspec.structs.replace(plan, shards=(empty,))) == []


@pytest.mark.parametrize("seed", range(4))
def test_any_filters_together(lab: Lab, seed: int) -> None:
    topic = filled(lab, segments=4)
    topic.shard.delete(7, 50, 51)
    topic.shards[1].delete_key(b"k4")
    rng = random.Random(seed)
    stored = topic.stored()

    def maybe(make: Callable[[], Any]) -> Any:
        return make() if rng.random() < 0.4 else None

    for _ in range(40):
        keys = maybe(lambda: tuple(rng.choice(stored)["key"] for _ in range(rng.randrange(3))))
        tags = maybe(lambda: tuple(f"tag-{rng.randrange(5)}" for _ in range(rng.randrange(3))))
        wanted = Wanted(
            shards=maybe(lambda: (rng.randrange(2),)),
            start_offsets=maybe(lambda: {0: rng.randrange(200)}) or {},
            end_offsets=maybe(lambda: {1: rng.randrange(200)}) or {},
            min_timestamp_ms=maybe(lambda: FIRST_MS + rng.randrange(170_000)),
            end_timestamp_ms=maybe(lambda: FIRST_MS + rng.randrange(170_000)),
            keys=keys,
            tags=tags,
        )
        expected = [row for row in stored if keeps(wanted)(row)]
        assert rows(topic.read(wanted, target_bytes=rng.choice((1, 10**9)))) == expected, wanted


@pytest.mark.parametrize(
    "options",
    [{"durability": "os"}, {"durability": "interval", "durability.interval.ms": 3_600_000}],
    ids=["os", "interval"],
)
def test_a_durable_plan_has_synced_what_it_shows(lab: Lab, options: dict[str, object]) -> None:
    """A table keeps what a power cut would take from a log whose records are shown before they are
    on the device, and their offsets would be given out again."""
    topic = LakeTopic(lab, options)
    topic.shard.append(*numbered(20))
    log = topic.engine.log(topic.topic.shard_name(0))  # type: ignore[attr-defined]
    assert topic.plan().shards[0].end_offset == 20
    assert log.synced.next_offset < 20
    plan = topic.plan(Wanted(is_durable=True, end_offsets={0: 15}))
    assert plan.shards[0].end_offset == 20
    assert plan.shards[0].segments[-1].end_offset == 15
    assert log.synced.next_offset == 20
