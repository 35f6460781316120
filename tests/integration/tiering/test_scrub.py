"""Objects against metadata: what is left over, what is missing, and what belongs to others."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import TieringConfig
from firnmq.server.recovery import recover_directory
from firnmq.testing import FakeClock
from firnmq.tiering.archive.scrubber import ScrubReport
from firnmq.tiering.format.object_names import object_key, parse
from firnmq.tiering.stores import ObjectInfo, ObjectStore
from tests.integration.tiering.stage import TIERED_HERE, TOPIC, Stage, Wrapped, check

DAY_MS = 24 * 3600 * 1000


def orphan(stage: Stage, upload_id: str = "00000000000000aa", cluster: str = "") -> list[str]:
    """Leaves a copy that nothing refers to; the keys of its objects."""
    topic = stage.store.topic(TOPIC).topic
    key = object_key(
        cluster or stage.mover.status().cluster,
        TOPIC,
        topic.topic_id,
        topic.shard_name(0),
        stage.metas()[0],
        upload_id,
    )
    keys = [key + suffix for suffix in (".idx", ".mf", ".seg")]
    for each in keys:
        stage.objects.put(each, b"left over")
    return keys


def test_orphans_are_found_and_removed(tmp_path: Path, tiering: TieringConfig) -> None:
    with Stage(tmp_path / "data", tiering) as stage:
        topic = stage.create(local_retention_ms=0)
        stage.fill(0, 60)
        stage.work()
        before = stage.object_keys()
        left = orphan(stage)
        stage.objects.put("somebody/elses.thing", b"not ours")
        others = orphan(stage, cluster="another-cluster")

        young = stage.mover.scrub(dry_run=False)
        assert (young.orphan_count, young.young_count, young.removed_count) == (3, 3, 0)

        look = stage.mover.scrub(dry_run=True, grace_ms=0)
        assert [each.key for each in look.orphans] == left
        assert (look.removed_count, look.foreign_count) == (0, 4)

        done = stage.mover.scrub(dry_run=False, grace_ms=0)
        assert (done.removed_count, done.removed_bytes) == (3, 27)
        assert stage.object_keys() == sorted([*before, *others])
        assert stage.objects.head("somebody/elses.thing").size == 8
        assert stage.mover.scrub(dry_run=False, grace_ms=0).orphan_count == 0
        check(topic, range(60))


def test_orphans_from_before_the_stores_clock_was_set_back(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    clock = FakeClock()
    with Stage(tmp_path / "data", file_tiering, clock=clock) as stage:
        stage.create()
        stage.fill(0, 20)
        for key in orphan(stage):
            file = tmp_path / "objects" / key
            ahead_s = file.stat().st_mtime + 365 * DAY_MS / 1000
            os.utime(file, (ahead_s, ahead_s))
        young = stage.mover.scrub(dry_run=False, grace_ms=DAY_MS)
        assert (young.orphan_count, young.removed_count) == (3, 0)
        clock.advance(DAY_MS)
        assert stage.mover.scrub(dry_run=False, grace_ms=DAY_MS).removed_count == 3


def test_what_is_missing_is_found(tmp_path: Path, tiering: TieringConfig) -> None:
    with Stage(tmp_path / "data", tiering) as stage:
        stage.create()
        stage.fill(0, 80)
        stage.work()
        segments, manifests = stage.object_keys(".seg"), stage.object_keys(".mf")
        index = stage.object_keys(".idx")[2]
        stage.objects.delete([segments[0], manifests[1]])
        stage.objects.put(index, b"short", if_absent=False)
        found = {each.key: each for each in stage.mover.scrub(dry_run=True).missing}
        assert set(found) == {segments[0], manifests[1], index}
        assert "is not there" in found[segments[0]].reason
        assert "5 bytes" in found[index].reason
        assert all(each.is_local for each in found.values())


@pytest.mark.parametrize("engine", ["EngineSegment", "EngineRocksDB", "EngineMemory"])
@pytest.mark.parametrize("suffix", [".seg", ".idx", ".mf"])
def test_a_lost_object_is_brought_back(
    tmp_path: Path, tiering: TieringConfig, engine: str, suffix: str
) -> None:
    """1. An object of a segment that is also local is removed. 2. A dry run changes nothing.
    3. A scrub copies the segment again, and what is here stays all the while."""
    with Stage(tmp_path / "data", tiering) as stage:
        topic = stage.create(storage_type=engine)
        stage.fill(0, 60)
        stage.work()
        before = stage.metas()
        stage.objects.delete([stage.object_keys(suffix)[1]])
        stage.mover.scrub(dry_run=True)
        assert stage.metas() == before
        report = stage.mover.scrub(dry_run=False)
        assert [(each.is_local, each.is_mended) for each in report.missing] == [(True, True)]
        assert report.mended_count == 1
        stage.wait_for_cache()
        assert stage.states() == {TIERED_HERE}
        copies = [(old.tier, new.tier) for old, new in zip(before, stage.metas(), strict=True)]
        assert [at for at, (old, new) in enumerate(copies) if old != new] == [1]
        again = stage.mover.scrub(dry_run=True, grace_ms=0)
        assert (again.missing, again.orphan_count) == ([], 0)
        check(topic, range(60))
    shutil.rmtree(tmp_path / "data")
    assert recover_directory(tmp_path / "data", tiering).gaps == []
    with Stage(tmp_path / "data", tiering) as stage:
        check(stage.store.topic(TOPIC), range(60))


def test_what_is_only_in_the_store_cannot_be_brought_back(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create(local_retention_ms=0)
        stage.fill(0, 40)
        stage.work()
        before = stage.metas()
        stage.objects.delete([stage.object_keys(".seg")[1]])
        report = stage.mover.scrub(dry_run=False)
        assert [(each.is_local, each.is_mended) for each in report.missing] == [(False, False)]
        assert (report.mended_count, stage.metas()) == (0, before)


def test_a_copy_that_changes_during_the_scrub_is_left_alone(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create()
        stage.fill(0, 40)
        stage.work()
        engine, shard = stage.local.engines["EngineSegment"], topic.topic.shard_name(0)
        meta = stage.metas()[1]
        assert meta.tier is not None
        assert engine.lose_copy(shard, meta.seq, "0" * 16) is None
        assert engine.lose_copy(shard, 99, meta.tier.upload_id) is None
        assert stage.metas()[1] == meta
        engine.drop_local(shard, meta.seq)
        assert engine.lose_copy(shard, meta.seq, meta.tier.upload_id) is None
        check(topic, range(40))


class Skewed(Wrapped):
    """A store whose clock is not ours."""

    def __init__(self, inner: ObjectStore, skew_ms: int) -> None:
        super().__init__(inner)
        self._skew_ms = skew_ms
        self.aged: set[str] = set()
        """Objects that are two days old by the store's clock."""

    def head(self, key: str) -> ObjectInfo:
        return self._shifted(super().head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return map(self._shifted, super().list(prefix))

    def _shifted(self, info: ObjectInfo) -> ObjectInfo:
        age_ms = 2 * DAY_MS if info.key in self.aged else 0
        return info._replace(modified_ms=info.modified_ms + self._skew_ms - age_ms)


@pytest.mark.parametrize("skew_ms", [-10 * DAY_MS, 10 * DAY_MS], ids=["behind", "ahead"])
def test_age_is_by_the_clock_of_the_store(
    tmp_path: Path, file_tiering: TieringConfig, skew_ms: int
) -> None:
    """Whatever our clock says, what was just written is young, and only what is old goes."""
    made: list[Skewed] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        made.append(Skewed(inner, skew_ms))
        return made[0]

    with Stage(tmp_path / "data", file_tiering, wrap=wrap, clock=FakeClock()) as stage:
        stage.create()
        stage.fill(0, 20)
        stage.work()
        new, old = orphan(stage), orphan(stage, "00000000000000bb")
        made[0].aged.update(old)
        report: ScrubReport = stage.mover.scrub(dry_run=False)
        assert (report.removed_count, report.young_count) == (3, 3)
        left = [key for key in stage.object_keys() if parse(key).upload_id == "00000000000000aa"]
        assert left == new
        assert not set(old) & set(stage.object_keys())


def test_an_upload_that_begins_during_a_scrub(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """Objects are listed first and the metadata is read after, so a copy that begins in between, or
    that was begun before, is never taken for an orphan, not even without a grace period."""

    def watch(moment: str, call: str, key: str) -> None:
        nonlocal is_scrubbing
        if is_scrubbing and call == "list" and key == "":
            if moment == "after":
                is_scrubbing = False
            stage.mover.request_upload()
            stage.mover.work()

    is_scrubbing = False
    config = dataclasses.replace(file_tiering, parallel_uploads=1)
    with Stage(tmp_path / "data", config, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        topic = stage.create(local_retention_ms=0)
        stage.fill(0, 80)
        is_scrubbing = True
        report = stage.mover.scrub(dry_run=False, grace_ms=0)
        assert (report.orphan_count, report.missing) == (0, [])
        stage.work(rounds=20)
        check(topic, range(80))
        assert stage.mover.scrub(dry_run=False, grace_ms=0).missing == []


def test_it_is_done_by_itself(tmp_path: Path, file_tiering: TieringConfig) -> None:
    config = dataclasses.replace(file_tiering, scrub_ms=1, scrub_grace_ms=0)
    with Stage(tmp_path / "data", config) as stage:
        stage.create()
        stage.fill(0, 20)
        stage.work()
        left = orphan(stage)
        while set(left) & set(stage.object_keys()):
            stage.mover.work()


def test_what_is_beyond_the_end_of_a_shard_stays(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """1. A copy of the directory is made. 2. More is uploaded and dropped here. 3. The copy is put
    back: what it knows nothing of is nowhere else, and `firn recover` can still have it."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create(local_retention_ms=0)
        stage.fill(0, 40)
        stage.work()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.fill(40, 40)
        stage.work()
        before = stage.object_keys()
    with Stage(tmp_path / "copy", file_tiering) as stage:
        report = stage.mover.scrub(dry_run=False, grace_ms=0)
        assert report.ahead_count > 0
        assert (report.removed_count, stage.object_keys()) == (0, before)
    recover_directory(tmp_path / "new", file_tiering)
    with Stage(tmp_path / "new", file_tiering) as stage:
        check(stage.store.topic(TOPIC), range(80))
