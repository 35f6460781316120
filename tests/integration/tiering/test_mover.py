"""Sealed segments go to the store, local copies go, and reads do not notice."""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from firnmq.config import Tiering, TieringConfig
from firnmq.disk import run_blocking
from firnmq.engines.api import ShardStatus
from firnmq.errors import Corruption, ObjectCorrupt, ShardNotFound, TierBacklogFull
from firnmq.meta.records import segment_key
from firnmq.server.recovery import recover_directory
from firnmq.testing import FakeClock
from firnmq.tiering.format.manifest import ShardManifest
from firnmq.tiering.format.object_names import parse, parse_manifest
from firnmq.tiering.stores import ObjectInfo
from tests.integration.tiering.stage import (
    SEALED_HERE,
    TIERED_HERE,
    TIERED_THERE,
    TOPIC,
    Stage,
    Wrapped,
    check,
    record_of,
)

ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")


def _change(stage: Stage, name: str = TOPIC, **fields: Any) -> None:
    """Gives the topic other options."""
    config = dataclasses.replace(stage.store.topic(name).topic.config, **fields)
    run_blocking(stage.local.manager.reconfigure_topic(name, config))
    stage.wait_for_cache()


def test_cold_reads_beside_an_append_that_does_not_end(
    tmp_path: Path, tiering: TieringConfig
) -> None:
    """They let it go first, and do not wait for it for ever."""
    with Stage(tmp_path / "data", tiering) as stage:
        cold = stage.create(local_retention_ms=0)
        stage.fill(0, 120)
        stage.work()
        hot = stage.create("hot")
        hot.append([record_of(0)], shard=0)
        pool, tier = stage.local.pool, stage.local.tier
        assert tier is not None
        log = stage.local.engines["EngineSegment"].log(hot.topic.shard_name(0))
        with log.lock:
            appender = threading.Thread(target=hot.append, args=([record_of(1)],))
            appender.start()
            while not pool.is_busy:
                time.sleep(0.001)
            check(cold, range(120))
            tier.cold.flush()
            assert tier.cold.statistics().disk_bytes > 0
            assert pool.is_busy
        appender.join()
        assert [record.offset for record in hot.read(0)] == [0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_history_is_read_from_the_store(
    tmp_path: Path, tiering: TieringConfig, engine: str
) -> None:
    with Stage(tmp_path / "data", tiering) as stage:
        topic = stage.create(storage_type=engine, local_retention_ms=0)
        stage.fill(0, 120)
        assert stage.states() == {SEALED_HERE}
        stage.work()
        assert stage.states() == {TIERED_THERE}
        assert len(stage.object_keys(".seg")) == len(stage.metas()) - 1 > 2
        check(topic, range(120))
        topic.delete_by_offset(5)
        topic.delete_by_key(b"key-3", shard=0)
        left = [n for n in range(120) if n != 5 and n % 7 != 3]
        check(topic, left)
        stage.fill(122, 40)  # Behind the entries of the deletions.
    with Stage(tmp_path / "data", tiering) as stage:
        check(stage.store.topic(TOPIC), [*left, *range(122, 162)])
        stage.work()
        assert stage.states() == {TIERED_THERE}
        check(stage.store.topic(TOPIC), [*left, *range(122, 162)])
        report = stage.mover.scrub(dry_run=False, grace_ms=0)
        assert (report.orphan_count, report.missing) == (0, [])


def test_a_segment_waits_for_its_delay(tmp_path: Path, file_tiering: TieringConfig) -> None:
    clock = FakeClock()
    with Stage(tmp_path / "data", file_tiering, clock=clock) as stage:
        stage.create(tiering_upload_delay_ms=60_000)
        stage.fill(0, 40)
        clock.advance(59_999)
        stage.mover.work()
        assert stage.object_keys() == []
        status = stage.mover.status()
        assert "delay" in status.waiting[0].why
        assert status.lag_ms == 0
        clock.advance(500)
        assert stage.mover.status().lag_ms == 499
        stage.mover.work()
        stage.mover.work()
        assert stage.states() == {TIERED_HERE}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_is_set_back_does_not_hold_up_uploads(
    tmp_path: Path, file_tiering: TieringConfig, restarts: bool
) -> None:
    clock = FakeClock()
    stage = Stage(tmp_path / "data", file_tiering, clock=clock)
    stage.create(tiering_upload_delay_ms=60_000, local_retention_ms=60_000)
    stage.fill(0, 40)
    clock.set_back(365 * 24 * 3_600_000)
    if restarts:
        stage.store.close()
        stage = Stage(tmp_path / "data", file_tiering, clock=clock)
    with stage:
        stage.mover.work()
        if not restarts:
            status = stage.mover.status()
            assert "for another 60,000 ms" in status.waiting[0].why
            assert status.lag_ms == 0
        clock.advance(60_000)
        for _ in stage.metas():
            stage.mover.work()
            stage.wait_for_cache()
        assert not stage.mover.status().waiting_segments
        clock.advance(60_000)
        stage.mover.work()
        assert stage.states() == {TIERED_THERE}


def test_local_retention_keeps_the_newest(tmp_path: Path, file_tiering: TieringConfig) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create()
        stage.fill(0, 200)
        stage.work(rounds=40)
        _change(stage, local_retention_bytes=5_000)
        stage.mover.work()
        places = [meta.is_local for meta in stage.metas()]
        assert places == sorted(places)
        assert places.count(False) >= 2
        here = sum(meta.length for meta in stage.metas() if meta.is_local)
        first_here = next(meta for meta in stage.metas() if meta.is_local)
        assert here >= 5_000 > here - first_here.length
        check(topic, range(200))
        stage.wait_for_cache()
        assert stage.mover.status().local_bytes == here


def test_nothing_goes_here_without_local_retention(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.fill(0, 60)
        stage.work()
        assert stage.states() == {TIERED_HERE}
        assert stage.mover.status().dropped_count == 0


def test_nothing_goes_here_that_the_store_has_lost(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create()
        stage.fill(0, 60)
        stage.work()
        gone = stage.object_keys(".seg")[0]
        stage.objects.delete([gone])
        _change(stage, local_retention_ms=0)
        stage.mover.work()
        sealed = [meta for meta in stage.metas() if meta.is_sealed]
        lost = [meta for meta in sealed if meta.is_local]
        assert [f"{meta.tier.key}.seg" for meta in lost if meta.tier is not None] == [gone]
        assert len(sealed) > 2, "one bad object does not keep others from going"
        status = stage.mover.status()
        assert (status.state, status.failure_counts["verification"]) == ("ok", 1)
        assert gone in (status.last_error or "")
        assert len(stage.mover.scrub(dry_run=True).missing) == 1
        check(topic, range(60))


def test_a_shard_that_cannot_be_opened_does_not_keep_others_from_going(
    tmp_path: Path, file_tiering: TieringConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        names = ("one", "two")
        for name in names:
            stage.create(name)
            stage.fill(0, 40, name)
        stage.work()
        engine = stage.local.engines["EngineSegment"]
        bad = min(stage.store.topic(name).topic.shard_name(0) for name in names)
        status = engine.status

        def failing(shard: str) -> ShardStatus:
            if shard == bad:
                raise Corruption("it is damaged", where=shard)
            return status(shard)

        for name in names:
            _change(stage, name, local_retention_ms=0)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "status", failing)
            stage.mover.work()
        assert {frozenset(stage.states(name)) for name in names} == {
            frozenset({TIERED_HERE}),
            frozenset({TIERED_THERE}),
        }
        assert stage.mover.status().state == "ok"


def test_a_defect_does_not_end_the_mover(
    tmp_path: Path, file_tiering: TieringConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.fill(0, 20)
        with monkeypatch.context() as patch:
            patch.setattr(stage.mover.tenure, "refresh", lambda: 1 / 0)
            stage.mover.work()
        assert "division" in (stage.mover.status().last_error or "")
        stage.work()
        assert stage.states() == {TIERED_HERE}


@pytest.mark.parametrize("engine", ENGINES)
def test_remote_retention_removes_objects_last(
    tmp_path: Path, tiering: TieringConfig, engine: str
) -> None:
    """1. Everything is in the store alone. 2. Retention moves the start. 3. The shard's manifest
    says so before the first object goes, and a segment's manifest goes before its bytes."""
    calls: list[tuple[str, str]] = []

    def watch(when: str, call: str, key: str) -> None:
        if when == "after" and call in ("put", "delete"):
            calls.extend((call, each) for each in key.split(","))

    with Stage(tmp_path / "data", tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        topic = stage.create(storage_type=engine, local_retention_ms=0)
        stage.fill(0, 120)
        stage.work()
        boundary = stage.metas()[2].base_offset
        calls.clear()
        topic.delete_before(boundary)
        stage.wait_for_cache()
        assert stage.mover.status().dead_segments == 2
        stage.work()
        assert stage.mover.status().dead_segments == 0
        check(topic, range(boundary, 120))
        assert len(stage.object_keys(".seg")) == len(stage.metas()) - 1
        first_delete = next(
            at for at, (call, key) in enumerate(calls) if call == "delete" and parse(key)
        )
        manifests = [
            key for call, key in calls[:first_delete] if call == "put" and parse_manifest(key)
        ]
        size = stage.objects.head(manifests[-1]).size
        manifest = ShardManifest.unpack(stage.objects.get_range(manifests[-1], 0, size), "")
        assert manifest.start_offset == boundary
        removed = [key.rpartition(".")[2] for call, key in calls if call == "delete" and parse(key)]
        assert removed == ["mf", "mf", "idx", "idx", "seg", "seg"]
        assert stage.mover.scrub(dry_run=True, grace_ms=0).orphan_count == 0


def test_a_deleted_topic_leaves_nothing(tmp_path: Path, tiering: TieringConfig) -> None:
    with Stage(tmp_path / "data", tiering) as stage:
        stage.create(local_retention_ms=0)
        stage.create("other")
        stage.fill(0, 60)
        stage.fill(0, 20, "other")
        stage.work()
        kept = [key for key in stage.object_keys() if "/other-" in key]
        stage.store.delete_topic(TOPIC)
        stage.wait_for_cache()
        assert stage.mover.status().dead_segments > 0
        stage.work()
        assert stage.object_keys() == kept
        everything = [info.key for info in stage.objects.list("")]
        assert not any(f"/{TOPIC}-" in key for key in everything)


def test_tiering_that_is_turned_off(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """1. An upload is broken off. 2. The topic's tiering is turned off. 3. Its objects go."""

    class Broken(OSError):
        pass

    def watch(when: str, call: str, key: str) -> None:
        if (when, call) == ("after", "upload"):
            raise Broken("no more")

    with Stage(tmp_path / "data", file_tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        topic = stage.create()
        stage.fill(0, 20)
        stage.mover.work()
        assert len(stage.object_keys()) >= 1
        _change(stage, tiering=Tiering.OFF)
        stage.mover.work()
        stage.mover.work()
        assert stage.object_keys() == []
        assert all(meta.tier is None for meta in stage.metas())
        check(topic, range(20))


def test_nothing_goes_here_once_tiering_is_off(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """It was allowed since all segments are local: a store that is lost later must lose nothing."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.fill(0, 40)
        stage.work()
        _change(stage, tiering=Tiering.OFF, local_retention_ms=0)
        stage.mover.work()
        assert stage.states() == {TIERED_HERE}
        _change(stage, tiering=Tiering.ON)
        stage.mover.work()
        assert stage.states() == {TIERED_THERE}


def test_a_copy_that_is_finished_while_it_is_given_up_stays(
    tmp_path: Path, file_tiering: TieringConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A topic's tiering is turned off during an upload. 2. The mover sees the unfinished copy.
    3. The upload ends. 4. The mover gives the copy up, too late: its objects are referred to."""
    seen = []

    def watch(when: str, call: str, key: str) -> None:
        if (when, call) == ("after", "put") and parse(key) is not None and key.endswith(".mf"):
            _change(stage, tiering=Tiering.OFF)
            seen.extend(stage.mover.ledger.unwanted())

    with Stage(tmp_path / "data", file_tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        topic = stage.create()
        stage.fill(0, 12)
        found = stage.mover.ledger.topic_of(topic.topic.shard_name(0))
        assert found is not None
        engine = stage.local.engines["EngineSegment"]
        stage.mover._uploader.upload(engine, found.record, topic.topic.shard_name(0), 0)
        assert len(seen) == 1
        stage.wait_for_cache()
        monkeypatch.setattr(stage.mover.ledger, "unwanted", lambda: seen)
        stage.mover._remover.work()
        assert stage.states() == {TIERED_HERE}
        assert stage.mover.scrub(dry_run=True, grace_ms=0).missing == []


def test_a_topic_deleted_during_an_upload_leaves_nothing(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """1. All bytes are read. 2. The topic is deleted, and its grave cleared. 3. The object appears,
    which only its uploader still knows of."""

    class Slow(Wrapped):
        def upload(self, key: str, chunks: Any, *, size: int) -> ObjectInfo:
            data = b"".join(chunks)
            stage.store.delete_topic(TOPIC)
            stage.wait_for_cache()
            stage.mover._remover.work()
            return super().upload(key, [data], size=size)

    with Stage(tmp_path / "data", file_tiering, wrap=Slow) as stage:
        topic = stage.create()
        stage.fill(0, 12)
        found = stage.mover.ledger.topic_of(topic.topic.shard_name(0))
        assert found is not None
        engine = stage.local.engines["EngineSegment"]
        with pytest.raises(ShardNotFound):
            stage.mover._uploader.upload(engine, found.record, topic.topic.shard_name(0), 0)
        assert stage.object_keys() == []


def test_manifests_of_a_shard_come_in_order(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """Uploads that run at the same time must not leave a gap where a node may be lost."""
    has_newer = threading.Event()
    order: list[int] = []

    def watch(when: str, call: str, key: str) -> None:
        found = parse(key)
        if found is None:
            return
        if (when, call) == ("before", "upload") and found.base_offset == 0:
            has_newer.wait(1)
        if (when, call, found.suffix) == ("before", "put", ".mf"):
            order.append(found.base_offset)
            if found.base_offset:
                has_newer.set()

    with Stage(tmp_path / "data", file_tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        stage.create()
        stage.fill(0, 60)
        stage.mover.work()
        assert len(order) == 2
        assert order == sorted(order)


@pytest.mark.parametrize("failing_call", ["upload", "put"])
def test_a_segment_that_fails_lets_no_newer_one_go_first(
    tmp_path: Path, file_tiering: TieringConfig, failing_call: str
) -> None:
    """Whenever every node is lost, the store has the shard from its start on without a gap."""
    is_failing = True
    kept: list[bool] = []

    def watch(when: str, call: str, key: str) -> None:
        found = parse(key)
        if found is None:
            return
        if (when, call, found.base_offset) == ("before", failing_call, 0) and is_failing:
            raise ObjectCorrupt("file://", "is another one", key=key)
        if (when, call, found.suffix) == ("after", "put", ".mf"):
            report = recover_directory(tmp_path / "new", file_tiering, dry_run=True)
            kept.append(not report.gaps and report.topics[0].shards[0].start_offset == 0)

    with Stage(tmp_path / "data", file_tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        stage.create()
        stage.fill(0, 60)
        stage.work(rounds=5)
        assert stage.object_keys(".mf") == []
        assert len(stage.object_keys(".seg")) <= 2, "what cannot be finished is hardly begun"
        is_failing = False
        stage.work(rounds=40)
        assert stage.states() == {TIERED_HERE}
        assert kept == [True] * (len(stage.metas()) - 1)
        assert stage.mover.scrub(dry_run=True, grace_ms=0).orphan_count == 0


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_appends_are_refused_while_too_much_waits(
    tmp_path: Path, file_tiering: TieringConfig, engine: str
) -> None:
    config = dataclasses.replace(file_tiering, backlog_bytes=4_000)
    with Stage(tmp_path / "data", config) as stage:
        topic = stage.create(storage_type=engine)
        free = stage.create("free", tiering="off")
        written = 0
        while not stage.mover.status().is_holding_appends:
            stage.fill(written, 20)
            written += 20
        with pytest.raises(TierBacklogFull) as caught:
            topic.append(["refused"])
        assert caught.value.waiting_bytes > 4_000 == caught.value.limit
        free.append(["goes on"])
        check(topic, range(written))
        stage.work()
        assert not stage.mover.status().is_holding_appends
        stage.fill(written, 20)
        check(topic, range(written + 20))


def test_a_directory_keeps_its_cluster(tmp_path: Path, file_tiering: TieringConfig) -> None:
    named = dataclasses.replace(file_tiering, cluster="mine")
    with Stage(tmp_path / "data", named) as stage:
        assert stage.mover.status().cluster == "mine"
    with Stage(tmp_path / "data", file_tiering) as stage:
        assert stage.mover.status().cluster == "mine"
    with pytest.raises(Exception, match="'mine'"):
        Stage(tmp_path / "data", dataclasses.replace(file_tiering, cluster="yours"))


def test_a_cluster_belongs_to_one_directory(tmp_path: Path, file_tiering: TieringConfig) -> None:
    named = dataclasses.replace(file_tiering, cluster="mine")
    with Stage(tmp_path / "one", named) as one:
        one.create()
        one.fill(0, 20)
        one.work()
        with Stage(tmp_path / "two", named) as two:
            two.create()
            two.fill(0, 20)
            two.work()
            assert two.mover.status().state == "not_owner"
            assert two.states() == {SEALED_HERE}
            with pytest.raises(Exception, match="another data directory"):
                two.mover.scrub(dry_run=False, grace_ms=0)
        assert one.mover.scrub(dry_run=True, grace_ms=0).orphan_count == 0


@pytest.mark.parametrize("suffix", ["topic-", "_0-"])
def test_a_manifest_that_is_gone_is_written_anew(
    tmp_path: Path, file_tiering: TieringConfig, suffix: str
) -> None:
    """1. The store's list has a manifest. 2. It is removed before it is read."""

    def watch(when: str, call: str, key: str) -> None:
        is_manifest = parse_manifest(key) is not None and suffix in key
        if is_removing and (when, call) == ("before", "head") and is_manifest:
            stage.objects.delete([key])

    is_removing = False
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.fill(0, 20)
        stage.work()
    is_removing = True
    with Stage(tmp_path / "data", file_tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        stage.mover.upkeep.write_soon()
        for _ in range(3):
            stage.mover.work()
        assert stage.mover.status().state == "ok"
        manifests = [info.key for info in stage.objects.list("manifests") if suffix in info.key]
        assert len(manifests) == 1


def test_manifests_of_a_deleted_topic_go_even_if_it_had_no_copies(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """A recovery would bring the topic back."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.create("other")
        stage.mover.work()
        assert len([*stage.objects.list("manifests")]) == 4
        stage.store.delete_topic(TOPIC)
        stage.wait_for_cache()
        stage.mover.work()
        left = [parse_manifest(info.key) for info in stage.objects.list("manifests")]
        assert {each.topic for each in left if each is not None} == {"other"}


def test_a_manifest_never_lacks_a_deletion_below_the_start_it_tells(
    tmp_path: Path, file_tiering: TieringConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that moves makes the log forget what was deleted below it, and the ledger may hear of
    the move later: a recovery would bring the record back."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create()
        stage.fill(0, 40)
        topic.delete_by_offset(5)
        stage.work()
        stale = stage.mover.ledger.shard(topic.topic.shard_name(0))
        topic.delete_before(10)
        monkeypatch.setattr(stage.mover.ledger, "shard", lambda _: stale)
        stage.mover.upkeep.write_soon()
        stage.mover.work()
        (key,) = (each.key for each in stage.objects.list("manifests") if "_0-" in each.key)
        size = stage.objects.head(key).size
        manifest = ShardManifest.unpack(stage.objects.get_range(key, 0, size), key)
        assert manifest.start_offset == 10 or 5 in manifest.holes


def test_a_damaged_record_of_one_segment_concerns_no_other(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create("damaged")
        stage.create()
        for name in ("damaged", TOPIC):
            stage.fill(0, 20, name)
        key = segment_key(topic.topic.shard_name(0), 0)
        stage.local.meta.txn([], {key: b"\xc1"})
        stage.wait_for_cache()
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.work(rounds=2)
        assert stage.states() == {TIERED_HERE}
