"""A cluster from its object store alone: nothing else is left of it."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq import NewRecord
from firnmq.config import TieringConfig
from firnmq.disk import run_blocking
from firnmq.engines import RawPage
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import Corruption, InvalidArgument
from firnmq.lake.plans.places import make_plan
from firnmq.record import decode, parse_header
from firnmq.server import recovery
from firnmq.server.recovery import recover_directory
from firnmq.server.tier import open_object_store
from firnmq.testing import FakeClock
from firnmq.testing.appending import append_batch
from firnmq.tiering.archive.recover import GapsFound
from firnmq.tiering.format.index_layout import Header, SectionKind
from firnmq.tiering.stores import ObjectStore
from tests.integration.tiering.batches import transactional_batch
from tests.integration.tiering.stage import TIERED_THERE, TOPIC, Stage, Wrapped, check

ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")


def lose(tmp_path: Path) -> None:
    """Everything but the objects."""
    shutil.rmtree(tmp_path / "data")


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_uploaded_comes_back(
    tmp_path: Path, tiering: TieringConfig, engine: str
) -> None:
    with Stage(tmp_path / "data", tiering) as stage:
        topic = stage.create(shards=3, storage_type=engine, max_record_bytes=123_456)
        stage.create("without", tiering="off")
        stage.fill(0, 120)
        topic.delete_by_offset(100)
        topic.delete_by_key(b"key-3", shard=0)
        topic.delete_before(10)
        stage.wait_for_cache()
        stage.work(rounds=40)
        topic.append(["not sealed, not uploaded"], shard=0)
        before = topic.topic
    lose(tmp_path)
    report = recover_directory(tmp_path / "data", tiering)
    assert [each.topic for each in report.topics] == [TOPIC]
    shard = report.topics[0].shards[0]
    assert (shard.start_offset, shard.end_offset, report.gaps) == (10, 120, [])
    assert report.passed_over == []
    left = [n for n in range(10, 120) if n != 100 and n % 7 != 3]
    with Stage(tmp_path / "data", tiering) as stage:
        topic = stage.store.topic(TOPIC)
        assert topic.topic == before
        assert stage.states() == {TIERED_THERE}
        check(topic, left)
        assert topic.status(1).end_offset == 0
        assert (
            topic.status(0).end_offset == 122
        )  # The entries of deletions were lost, and replaced.
        stage.fill(122, 20)
        check(topic, [*left, *range(122, 142)])
        stage.work(rounds=40)
        assert stage.mover.status().state == "ok"
        report_after = stage.mover.scrub(dry_run=True, grace_ms=0)
        assert (report_after.orphan_count, report_after.missing) == (0, [])
    with Stage(tmp_path / "data", tiering) as stage:
        check(stage.store.topic(TOPIC), [*left, *range(122, 142)])


@pytest.mark.parametrize("engine", ENGINES)
def test_entries_in_segments_are_enough(
    tmp_path: Path, file_tiering: TieringConfig, engine: str
) -> None:
    """1. Deletions are uploaded with the segment of their entries. 2. All is lost but the objects,
    and the shard's manifest is damaged. 3. The records stay deleted, in plans of the bucket alone
    and in the recovered node, which has the entries and no others."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create(storage_type=engine)
        stage.fill(0, 60)
        topic.delete_by_offset(40)
        topic.delete_by_key(b"key-3", shard=0)
        stage.fill(62, 20)
        stage.work(rounds=40)
    lose(tmp_path)
    (manifest,) = (tmp_path / "objects").rglob("*_0-*.mf")
    manifest.write_bytes(b"damaged")
    recover_directory(tmp_path / "data", file_tiering, skip_gaps=True)
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.store.topic(TOPIC)
        left = [n for n in range(60) if n != 40 and n % 7 != 3]
        check(topic, [*left, *range(62, 82)])
        assert topic.status(0).end_offset == 82
        findings = stage.local.verifier.verify(topic.topic.shard_name(0)).findings
        assert findings == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_deletions_that_the_table_needs_come_back(
    tmp_path: Path, file_tiering: TieringConfig, engine: str
) -> None:
    """1. Records are deleted, the log moves past some of them, and all is lost but the objects.
    2. Plans of the bucket alone, and of the recovered node, still name every deletion. 3. So they
    do when the log has moved past the rest, though no sync has told anything again."""

    def deleted(stage: Stage) -> tuple[set[int], dict[bytes, int]]:
        local = stage.store.local
        return local.state.deletions.all_of(stage.store.topic(TOPIC).status(0).spec.uid)

    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create(storage_type=engine)
        stage.fill(0, 120)
        stage.local.shards.move_lake_end(topic.status(0).spec.uid, 0)
        topic.delete_by_offset(5)
        topic.delete_by_offset(100)
        topic.delete_by_key(b"key-3", shard=0)
        topic.delete_before(40)
        stage.wait_for_cache()
        stage.work(rounds=40)
        before = deleted(stage)
        assert before == ({5, 100}, {b"key-3": 122})
    lose(tmp_path)
    options = {"store": str(file_tiering.url), "topic": TOPIC}
    (plan,) = make_plan(options).shards
    assert (set(plan.holes), dict(plan.dead_keys)) == before
    recover_directory(tmp_path / "data", file_tiering)
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.store.topic(TOPIC)
        check(topic, [n for n in range(40, 120) if n != 100 and n % 7 != 3])
        after = ({5, 100}, {b"key-3": 120})  # The log ends there: what comes next is not deleted.
        assert deleted(stage) == after
        uid = topic.status(0).spec.uid
        assert stage.local.state.retired_deletions.read(uid).holes == {5}
        topic.delete_before(120)
        assert stage.local.state.retired_deletions.read(uid)[:2] == after
        assert deleted(stage) == after


def test_the_directory_that_was_thought_lost_stops(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """1. A node is thought lost, its cluster recovered. 2. It comes back. 3. It moves nothing."""
    with Stage(tmp_path / "data", file_tiering) as old:
        old.create(local_retention_ms=0)
        old.fill(0, 40)
        old.work()
        recover_directory(tmp_path / "new", file_tiering)
        old.store.topic(TOPIC).delete_before(40)
        old.fill(40, 20)
        old.work()
        old.mover.tenure._known_at_s = None
        old.work()
        assert old.mover.status().state == "not_owner"
    with Stage(tmp_path / "new", file_tiering) as new:
        check(new.store.topic(TOPIC), range(40))
        assert new.mover.scrub(dry_run=True, grace_ms=0).missing == []


def test_a_node_that_works_during_the_recovery(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """1. A recovery has looked at everything. 2. The node that was thought lost uploads, expires,
    removes. 3. The recovery takes the cluster over: it has what is there then."""
    with Stage(tmp_path / "data", file_tiering) as old:
        old.create()
        old.fill(0, 80)
        old.work(rounds=40)
        start = old.metas()[1].base_offset

        def watch(moment: str, call: str, key: str) -> None:
            if (moment, call) == ("before", "put") and key.startswith("owners/"):
                old.store.topic(TOPIC).delete_before(start)
                old.fill(80, 20)
                old.work(rounds=40)

        recover_directory(
            tmp_path / "new",
            file_tiering,
            open_objects=lambda config: Wrapped(open_object_store(config), watch),
        )
    with Stage(tmp_path / "new", file_tiering) as new:
        check(new.store.topic(TOPIC), range(start, 100))
        report = new.mover.scrub(dry_run=True, grace_ms=0)
        assert (report.orphan_count, report.missing) == (0, [])


def test_what_a_replaced_node_still_uploads_does_not_count(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """1. A node that was replaced uploads one more segment, at a second attempt. 2. Its successor
    gives out the same offsets. 3. It is lost as well: its records come back, not the other's."""
    clock = FakeClock()
    with Stage(tmp_path / "data", file_tiering, clock=clock) as old:
        topic = old.create()
        old.fill(0, 40)
        old.work()
        recover_directory(tmp_path / "new", file_tiering, clock=clock)
        topic.append([NewRecord(value=b"of the old one")] * 4)
        topic.roll()
        old.wait_for_cache()
        engine = old.local.engines["EngineSegment"]
        begun = TierCopy(upload_id="0" * 16, key="x", started_ms=0)
        engine.begin_copy(topic.topic.shard_name(0), old.metas()[-2].seq, begun)
        found = old.mover.ledger.topic_of(topic.topic.shard_name(0))
        assert found is not None
        old.mover._uploader.upload(
            engine, found.record, topic.topic.shard_name(0), old.metas()[-2].seq
        )
    clock.advance(60_000)
    with Stage(tmp_path / "new", file_tiering, clock=clock) as new:
        new.fill(40, 4)
        new.work()
        assert len(new.object_keys(".mf")) == len(new.metas())
    lose(tmp_path)
    shutil.rmtree(tmp_path / "new")
    recover_directory(tmp_path / "data", file_tiering, clock=clock)
    with Stage(tmp_path / "data", file_tiering, clock=clock) as stage:
        check(stage.store.topic(TOPIC), range(44))


def test_a_replaced_node_writes_no_manifest(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """Even if it does not know yet that it was replaced."""
    with Stage(tmp_path / "data", file_tiering) as old:
        old.create()
        old.fill(0, 40)
        old.work()
        recover_directory(tmp_path / "new", file_tiering)
        with Stage(tmp_path / "new", file_tiering) as new:
            new.work()
            before = sorted(info.key for info in new.objects.list("manifests"))
            old.store.topic(TOPIC).delete_before(30)
            old.wait_for_cache()
            old.work()
            assert sorted(info.key for info in new.objects.list("manifests")) == before
    lose(tmp_path)
    shutil.rmtree(tmp_path / "new")
    recover_directory(tmp_path / "data", file_tiering)
    with Stage(tmp_path / "data", file_tiering) as stage:
        check(stage.store.topic(TOPIC), range(40))


@pytest.mark.parametrize("count", [12, 20, 36])
def test_what_a_replaced_directory_still_uploads_does_not_count(
    tmp_path: Path, file_tiering: TieringConfig, count: int
) -> None:
    """It learns within half a minute that it was replaced. What it says until then, with more or
    fewer records than the new one and after it, changes nothing that a later recovery finds."""
    with Stage(tmp_path / "data", file_tiering) as old:
        old.create(local_retention_ms=0)
        old.fill(0, 40)
        old.work()
        recover_directory(tmp_path / "new", file_tiering)
        with Stage(tmp_path / "new", file_tiering) as new:
            new.fill(40, count)
            new.work()
        old.store.topic(TOPIC).delete_before(20)
        old.fill(1000, 20)
        old.mover.upkeep.write_soon()
        old.work()
    recovery = recover_directory(tmp_path / "newest", file_tiering)
    assert any("had been replaced" in each for each in recovery.passed_over)
    with Stage(tmp_path / "newest", file_tiering) as newest:
        check(newest.store.topic(TOPIC), range(40 + count))


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_transactions_and_producers(
    tmp_path: Path, file_tiering: TieringConfig, engine: str
) -> None:
    """1. One transaction was committed, one aborted, one is open where the store ends. 2. After the
    recovery the open one is aborted. 3. What producers have sent before is not taken twice."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create(storage_type=engine, local_retention_ms=0)
        shard = topic.topic.shard_name(0)
        log = stage.local.engines[engine]
        for producer, value in ((7, b"committed"), (8, b"aborted"), (9, b"open")):
            run_blocking(append_batch(log, shard, transactional_batch(producer, 0, value)))
        run_blocking(log.append_marker(shard, 7, 0, is_commit=True))
        run_blocking(log.append_marker(shard, 8, 0, is_commit=False))
        topic.roll()
        stage.wait_for_cache()
        stage.work()
        assert stage.states() == {TIERED_THERE}
    lose(tmp_path)
    report = recover_directory(tmp_path / "data", file_tiering)
    assert report.topics[0].shards[0].aborted_transactions == [9]
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.store.topic(TOPIC)
        log = stage.local.engines[engine]
        assert [record.value for record in topic.records()] == [b"committed"]
        status = topic.status(0)
        assert status.stable_offset == status.end_offset
        again = run_blocking(append_batch(log, shard, transactional_batch(7, 0, b"committed")))
        assert again.base_offset == 0, "it is the batch that is there already"
        topic.append([NewRecord(value=b"after")])
        assert [record.value for record in topic.records()] == [b"committed", b"after"]


def spoil(objects: ObjectStore, key: str) -> None:
    """Changes one bit in the middle of an object."""
    size = objects.head(key).size
    content = bytearray(objects.get_range(key, 0, size))
    content[size // 2] ^= 1
    objects.put(key, content, if_absent=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gap_is_told_and_can_be_skipped(
    tmp_path: Path, file_tiering: TieringConfig, engine: str
) -> None:
    """1. A segment's bytes are lost. 2. What is on both sides comes back, if that is wanted. 3. The
    gap goes to the store like any segment. 4. The next recovery knows of it."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create(storage_type=engine)
        stage.fill(0, 120)
        stage.work(rounds=40)
        metas = [meta for meta in stage.metas() if meta.is_sealed]
        assert len(metas) > 3
        lost = metas[1]
        assert lost.tier is not None
        stage.objects.delete([lost.tier.key + ".seg"])
    lose(tmp_path)
    with pytest.raises(GapsFound) as caught:
        recover_directory(tmp_path / "data", file_tiering)
    gap = caught.value.gaps[0]
    assert (gap.start_offset, gap.end_offset) == (lost.base_offset, lost.end_offset)
    assert not (tmp_path / "data").exists()
    report = recover_directory(tmp_path / "data", file_tiering, skip_gaps=True)
    assert len(report.gaps) == 1
    assert any(lost.tier.key in reason for reason in report.passed_over)
    left = [*range(lost.base_offset), *range(lost.end_offset, 120)]
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.store.topic(TOPIC)
        check(topic, left)
        inside = topic.read(lost.base_offset + 1, max_records=1)
        assert [record.offset for record in inside] == [lost.end_offset]
        shard = topic.topic.shard_name(0)
        assert not stage.local.verifier.verify(shard).findings
        config = dataclasses.replace(topic.topic.config, local_retention_ms=0)
        run_blocking(stage.local.manager.reconfigure_topic(TOPIC, config))
        stage.wait_for_cache()
        stage.work()
        assert stage.states() == {TIERED_THERE}
        check(topic, left)
        assert not stage.local.verifier.verify(shard).findings
        assert stage.mover.scrub(dry_run=False, grace_ms=0).missing == []
    lose(tmp_path)
    assert recover_directory(tmp_path / "data", file_tiering).gaps == []
    with Stage(tmp_path / "data", file_tiering) as stage:
        check(stage.store.topic(TOPIC), left)


def split(content: bytes) -> Iterator[bytes]:
    """Batches that stand one after the other."""
    while content:
        size = 12 + int.from_bytes(content[8:12], "big")
        yield content[:size]
        content = content[size:]


def kafka_view(pages: list[RawPage]) -> list[bytes]:
    """Values that a Kafka client shows that reads what is committed: page by page."""
    values: list[bytes] = []
    for page in pages:
        told = sorted(page.aborted, key=lambda each: each.first_offset)
        passed_over: set[int] = set()
        for batch in split(b"".join(page.batches)):
            header = parse_header(batch)
            while told and told[0].first_offset <= header.last_offset:
                passed_over.add(told.pop(0).producer_id)
            if header.is_control:
                continue  # None of those that are not lost here ends an aborted one.
            if not (header.is_transactional and header.producer_id in passed_over):
                values += [record.value or b"" for record in decode([batch]).records()]
    return values


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_a_transaction_that_was_aborted_in_a_gap_is_not_committed(
    tmp_path: Path, file_tiering: TieringConfig, is_known: bool
) -> None:
    """1. A transaction begins in one segment, is aborted in the next, and its producer commits
    another one in the third. 2. The second is lost. 3. What was aborted is not shown, what was
    committed is, to our own readers and to Kafka's. `is_known`: the first segment was uploaded
    after the abortion, so that its index tells."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create()
        shard = topic.topic.shard_name(0)
        engine = stage.local.engines["EngineSegment"]
        topic.append(["before"], shard=0)
        run_blocking(append_batch(engine, shard, transactional_batch(8, 0, b"aborted")))
        topic.roll()
        if not is_known:
            stage.wait_for_cache()
            stage.work()
        run_blocking(engine.append_marker(shard, 8, 0, is_commit=False))
        topic.append(["lost"], shard=0)
        topic.roll()
        run_blocking(append_batch(engine, shard, transactional_batch(8, 1, b"committed")))
        run_blocking(engine.append_marker(shard, 8, 0, is_commit=True))
        topic.append(["after"], shard=0)
        topic.roll()
        stage.wait_for_cache()
        stage.work()
        stage.objects.delete([stage.object_keys(".seg")[1]])
    lose(tmp_path)
    report = recover_directory(tmp_path / "data", file_tiering, skip_gaps=True)
    row = report.topics[0].shards[0]
    assert row.doubtful_transactions == ([] if is_known else [8])
    left = [b"before", b"committed", b"after"]
    for _ in range(2):
        with Stage(tmp_path / "data", file_tiering) as stage:
            topic = stage.store.topic(TOPIC)
            assert [record.value for record in topic.records()] == left
            for size in (1, 1 << 20):
                pages = []
                at = topic.status(0).start_offset
                while at < topic.status(0).end_offset:
                    page = stage.local.engines["EngineSegment"].read_batches(
                        shard, at, max_bytes=size, committed=True
                    )
                    pages.append(page)
                    at = page.next_offset
                assert kafka_view(pages) == left
            assert not stage.local.verifier.verify(shard).findings
            stage.work()
        lose(tmp_path)
        assert recover_directory(tmp_path / "data", file_tiering).gaps == []


def test_an_end_that_cannot_be_read_is_a_gap(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """It must not be given up silently: what comes next gets its offsets, and a scrub its bytes."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.fill(0, 60)
        stage.work(rounds=40)
        last = stage.object_keys(".mf")[-1]
        spoil(stage.objects, last)
        end = stage.metas()[-2].base_offset
    lose(tmp_path)
    with pytest.raises(GapsFound) as caught:
        recover_directory(tmp_path / "data", file_tiering)
    assert [(gap.start_offset, gap.end_offset) for gap in caught.value.gaps] == [(end, 60)]
    report = recover_directory(tmp_path / "data", file_tiering, skip_gaps=True)
    assert any(last in reason for reason in report.passed_over)
    assert report.topics[0].shards[0].end_offset == end
    with Stage(tmp_path / "data", file_tiering) as stage:
        check(stage.store.topic(TOPIC), range(end))


def test_a_damaged_list_of_aborted_transactions_is_told(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """Without it what was aborted would be read as committed."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create(local_retention_ms=0)
        shard = topic.topic.shard_name(0)
        engine = stage.local.engines["EngineSegment"]
        run_blocking(append_batch(engine, shard, transactional_batch(8, 0, b"aborted")))
        run_blocking(engine.append_marker(shard, 8, 0, is_commit=False))
        topic.roll()
        stage.wait_for_cache()
        stage.work()
        (key,) = stage.object_keys(".idx")
        content = bytearray(stage.objects.get_range(key, 0, stage.objects.head(key).size))
        section = Header.unpack(content, key).sections[SectionKind.ABORTED]
        content[section.position + section.length - 1] ^= 1
        stage.objects.put(key, content, if_absent=False)
    lose(tmp_path)
    with pytest.raises(Corruption, match="skip-gaps"):
        recover_directory(tmp_path / "data", file_tiering)
    assert not (tmp_path / "data").exists()
    report = recover_directory(tmp_path / "data", file_tiering, skip_gaps=True)
    assert any(key in reason for reason in report.passed_over)


@pytest.mark.parametrize("what", ["/topic-", "_0-"])
def test_a_damaged_manifest_is_told(tmp_path: Path, file_tiering: TieringConfig, what: str) -> None:
    """Without its manifest a topic would be taken for deleted, and deletions would be undone."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create()
        stage.fill(0, 60)
        topic.delete_by_offset(5)
        stage.work(rounds=40)
        (key,) = (each.key for each in stage.objects.list("manifests") if what in each.key)
        spoil(stage.objects, key)
    lose(tmp_path)
    with pytest.raises(Corruption, match="skip-gaps"):
        recover_directory(tmp_path / "data", file_tiering)
    assert not (tmp_path / "data").exists()
    report = recover_directory(tmp_path / "data", file_tiering, skip_gaps=True)
    assert any(key in reason for reason in report.passed_over)


def test_a_deleted_topic_does_not_come_back(tmp_path: Path, file_tiering: TieringConfig) -> None:
    """Not even if its objects are still there: its manifest goes first."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.create("other")
        stage.fill(0, 20)
        stage.work()
        manifests = [
            info.key for info in stage.objects.list("manifests") if f"/{TOPIC}-" in info.key
        ]
        stage.objects.delete([key for key in manifests if "/topic-" in key])
    lose(tmp_path)
    report = recover_directory(tmp_path / "data", file_tiering)
    assert [each.topic for each in report.topics] == ["other"]


def test_which_cluster_and_where(tmp_path: Path, file_tiering: TieringConfig) -> None:
    for name in ("one", "two"):
        named = dataclasses.replace(file_tiering, cluster=name)
        with Stage(tmp_path / name, named) as stage:
            stage.create()
            stage.fill(0, 12 if name == "one" else 24)
            stage.work()
    with pytest.raises(InvalidArgument, match="one, two"):
        recover_directory(tmp_path / "data", file_tiering)
    with pytest.raises(InvalidArgument, match="three"):
        recover_directory(tmp_path / "data", dataclasses.replace(file_tiering, cluster="three"))
    two = dataclasses.replace(file_tiering, cluster="two")
    with pytest.raises(InvalidArgument, match="not empty"):
        recover_directory(tmp_path / "one", two)
    looked = recover_directory(tmp_path / "data", two, dry_run=True)
    assert looked.is_dry_run
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    (tmp_path / "data.recovering").mkdir()
    (tmp_path / "data.recovering" / "half").write_text("of a recovery that was killed")
    (tmp_path / "data.recovering" / "recovery-unfinished").touch()
    report = recover_directory(tmp_path / "data", two)
    assert report.topics[0].shards[0].end_offset == 24
    assert not (tmp_path / "data.recovering").exists()
    with Stage(tmp_path / "data", file_tiering) as stage:
        assert stage.mover.status().cluster == "two"
        check(stage.store.topic(TOPIC), range(24))


def test_a_recovery_removes_what_it_made_and_nothing_else(
    tmp_path: Path, file_tiering: TieringConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A directory of the user is in the way: it stays. 2. A recovery that fails leaves nothing.
    3. The next one is not hindered."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.fill(0, 12)
        stage.work()
    lose(tmp_path)
    theirs = tmp_path / "data.recovering" / "notes.txt"
    theirs.parent.mkdir()
    theirs.write_text("of the user")
    with pytest.raises(InvalidArgument, match="is in the way"):
        recover_directory(tmp_path / "data", file_tiering)
    assert theirs.read_text() == "of the user"
    shutil.rmtree(theirs.parent)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(recovery, "_write", fail)
        with pytest.raises(OSError, match="no space left"):
            recover_directory(tmp_path / "data", file_tiering)
    assert not theirs.parent.exists()
    assert recover_directory(tmp_path / "data", file_tiering).topics
    assert not (tmp_path / "data" / "recovery-unfinished").exists()


def test_an_empty_store(tmp_path: Path, file_tiering: TieringConfig) -> None:
    open_object_store(file_tiering).close()
    with pytest.raises(InvalidArgument, match="check the bucket and the prefix"):
        recover_directory(tmp_path / "data", file_tiering)


# Groups -------------------------------------------------------------------------------------------


def group_objects(stage: Stage) -> list[str]:
    return [info.key for info in stage.objects.list("groups")]


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_go_on_where_they_were(tmp_path: Path, tiering: TieringConfig, engine: str) -> None:
    """1. Groups commit, one of them what is not uploaded. 2. Everything is lost. 3. They have their
    offsets again, none beyond what was recovered, and none of a topic that was not."""
    with Stage(tmp_path / "data", tiering) as stage:
        shards = stage.create(shards=2, storage_type=engine).topic.shard_names()
        other = stage.create("without", tiering="off").topic.shard_name(0)
        stage.fill(0, 40)
        stage.store.topic(TOPIC).append(["lost with the node"] * 4, shard=0)
        offsets = stage.local.offsets
        offsets.commit("readers", {shards[0]: 17, other: 1}, "noted")
        offsets.commit("grüppe/ü x", {shards[0]: 43, shards[1]: 0})
        offsets.commit("elsewhere", {other: 1})
        before = offsets.committed("readers")[shards[0]]
        stage.work(rounds=40)
        assert len(group_objects(stage)) == 1
        assert stage.mover.scrub(dry_run=False, grace_ms=0).orphan_count == 0
    lose(tmp_path)
    report = recover_directory(tmp_path / "data", tiering)
    assert report.groups == ["grüppe/ü x", "readers"]
    assert report.groups_written_ms is not None
    (clamped,) = report.clamped_offsets
    assert (clamped.group, clamped.topic, clamped.shard) == ("grüppe/ü x", TOPIC, shards[0])
    assert (clamped.committed_offset, clamped.end_offset) == (43, 40)
    with Stage(tmp_path / "data", tiering) as stage:
        offsets = stage.local.offsets
        assert offsets.groups() == ["grüppe/ü x", "readers"]
        assert offsets.committed("readers") == {shards[0]: before}
        found = {shard: each.offset for shard, each in offsets.committed("grüppe/ü x").items()}
        assert found == {shards[0]: 40, shards[1]: 0}


def test_offsets_are_written_when_they_change(tmp_path: Path, file_tiering: TieringConfig) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        shard = stage.create().topic.shard_name(0)
        stage.fill(0, 40)
        stage.work()
        assert group_objects(stage) == []
        stage.local.offsets.commit("readers", {shard: 1})
        stage.mover.work()
        assert group_objects(stage) == [], "not more often than every offsets_ms"
        stage.work()
        (first,) = group_objects(stage)
        stage.work()
        assert group_objects(stage) == [first]
        stage.local.offsets.commit("readers", {shard: 2})
        stage.work()
        (second,) = group_objects(stage)
        assert second > first
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.work()
        assert group_objects(stage) == [second]
        stage.local.offsets.forget("readers")
        stage.work()
    assert recover_directory(tmp_path / "new", file_tiering).groups == []


def test_offsets_of_the_last_moment_are_in_the_store(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    with Stage(tmp_path / "data", file_tiering, moves=True) as stage:
        shard = stage.create().topic.shard_name(0)
        stage.fill(0, 40)
        stage.mover.upload_now()
        stage.local.offsets.commit("readers", {shard: 33})
    recover_directory(tmp_path / "new", file_tiering)
    with Stage(tmp_path / "new", file_tiering) as stage:
        assert stage.local.offsets.committed("readers")[shard].offset == 33


def test_a_replaced_node_does_not_set_groups_back(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """1. A cluster is recovered, and a group reads on. 2. The old node comes back with what it
    knew. 3. The next recovery has what the new one said."""
    with Stage(tmp_path / "data", file_tiering) as old:
        shard = old.create().topic.shard_name(0)
        old.fill(0, 40)
        old.local.offsets.commit("readers", {shard: 5})
        old.work()
        recover_directory(tmp_path / "new", file_tiering)
        with Stage(tmp_path / "new", file_tiering) as new:
            new.local.offsets.commit("readers", {shard: 25})
            new.work()
        old.local.offsets.commit("readers", {shard: 6})
        old.work()
    recover_directory(tmp_path / "newest", file_tiering)
    with Stage(tmp_path / "newest", file_tiering) as stage:
        assert stage.local.offsets.committed("readers")[shard].offset == 25


def test_damaged_offsets_are_told(tmp_path: Path, file_tiering: TieringConfig) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        shard = stage.create().topic.shard_name(0)
        stage.fill(0, 40)
        stage.local.offsets.commit("readers", {shard: 5})
        stage.work()
        (key,) = group_objects(stage)
        content = bytearray(stage.objects.get_range(key, 0, stage.objects.head(key).size))
        content[-10] ^= 1
        stage.objects.put(key, content, if_absent=False)
    with pytest.raises(Corruption, match="--skip-gaps recovers without it"):
        recover_directory(tmp_path / "new", file_tiering)
    report = recover_directory(tmp_path / "new", file_tiering, skip_gaps=True)
    assert (report.groups, len(report.passed_over)) == ([], 1)
    with Stage(tmp_path / "new", file_tiering) as stage:
        check(stage.store.topic(TOPIC), range(40))
