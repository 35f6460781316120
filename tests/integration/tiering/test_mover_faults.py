"""The mover when the store is down, slow, stopped, refusing or lying, or has other users."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import firnmq
from firnmq.config import TieringConfig
from firnmq.disk import run_blocking
from firnmq.errors import StaleEpoch, StoreUnavailable, TimedOut
from firnmq.server.recovery import recover_directory
from firnmq.testing import FakeClock
from firnmq.testing.fault_proxy import Fault, FaultProxy
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from firnmq.tiering.archive import upkeep
from firnmq.tiering.stores import ObjectInfo, ObjectStore
from tests.integration.tiering.stage import (
    OPTIONS,
    SEALED_HERE,
    TIERED_HERE,
    TIERED_THERE,
    TOPIC,
    Stage,
    Wrapped,
    check,
    once_available,
)

_CALLS_MAX = 400


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_fails_at_any_call(
    tmp_path: Path, file_tiering: TieringConfig, when: str
) -> None:
    """Call after call, the store fails there once: before it has done anything, or after it has
    and the answer is lost. Every time everything ends up where it belongs."""
    for number in range(_CALLS_MAX):
        failing = number
        numbers = itertools.count()

        def watch(moment: str, call: str, key: str) -> None:
            if moment == when and next(numbers) == failing:  # noqa: B023 - Used in this round.
                raise StoreUnavailable("file://", "down for a moment", key=key)

        config = dataclasses.replace(
            file_tiering, url=f"{file_tiering.url}-{number}", parallel_uploads=1
        )
        path = tmp_path / f"data-{number}"
        with Stage(path, config, wrap=lambda inner: Wrapped(inner, watch)) as stage:
            topic = stage.create(local_retention_ms=0)
            stage.fill(0, 12)
            stage.work()
            boundary = stage.metas()[-1].base_offset
            stage.fill(12, 4)
            topic.delete_before(boundary)
            stage.wait_for_cache()
            for _ in range(6):
                stage.work()
            assert stage.states() == {TIERED_THERE}
            assert stage.mover.status().dead_segments == 0
            is_complete = next(numbers) <= failing
            failing = -1  # From here on it is well.
            check(topic, range(boundary, 16))
            report = stage.mover.scrub(dry_run=True, grace_ms=0)
            assert (report.orphan_count, report.missing) == (0, [])
        if is_complete:
            assert number > 20
            return
    raise AssertionError("there is no end to the calls")


def test_a_store_that_is_down_while_records_come(
    tmp_path: Path, s3_tiering: TieringConfig, seaweed: SeaweedServer
) -> None:
    """1. The store answers 503. 2. Appends go on, what waits and why is shown. 3. It is back."""
    proxy = FaultProxy(("127.0.0.1", seaweed.port))
    config = dataclasses.replace(s3_tiering, endpoint=proxy.endpoint, retries=0)
    try:
        with Stage(tmp_path / "data", config) as stage:
            topic = stage.create(local_retention_ms=0)
            with proxy.injected(Fault(status=503)):
                stage.fill(0, 60)
                stage.work(rounds=3)
                status = stage.mover.status()
                assert status.state == "unavailable"
                assert status.failure_counts["unavailable"] >= 3
                assert status.waiting_bytes > 0
                assert "503" in (status.last_error or "")
                assert "cannot be used" in status.waiting[0].why or status.retry_in_ms == 0
                assert stage.states() == {SEALED_HERE}
                check(topic, range(60))
            stage.work(rounds=20)
            assert stage.mover.status().state == "ok"
            assert stage.states() == {TIERED_THERE}
            check(topic, range(60))
    finally:
        proxy.stop()


@pytest.mark.slow
def test_a_store_that_is_stopped(tmp_path: Path) -> None:
    """SIGSTOP: it takes connections and never answers. Appends continue."""
    server = SeaweedServer(tmp_path / "weed")
    config = TieringConfig(
        url=server.url,
        endpoint=server.endpoint,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region="us-east-1",
        allow_http=True,
        timeout_ms=500,
        connect_timeout_ms=500,
        retries=0,
        retry_ms=1,
        retry_ms_max=2,
    )
    try:
        with Stage(tmp_path / "data", config) as stage:
            topic = stage.create(local_retention_ms=0)
            stage.fill(0, 20)
            stage.work_until({TIERED_THERE})
            server.pause()
            stage.fill(20, 20)
            stage.work(rounds=2)
            assert stage.mover.status().state == "unavailable"
            with pytest.raises(StoreUnavailable):
                list(topic.records(0))
            assert [record.offset for record in topic.read(36)] == [36, 37, 38, 39]
            server.resume()
            stage.work_until({TIERED_THERE})
            once_available(lambda: check(topic, range(40)))
    finally:
        server.stop()


def test_wrong_credentials(tmp_path: Path, s3_tiering: TieringConfig) -> None:
    config = dataclasses.replace(s3_tiering, secret_key="wrong")
    with Stage(tmp_path / "data", config) as stage:
        topic = stage.create(local_retention_ms=0)
        stage.fill(0, 20)
        stage.work(rounds=2)
        assert stage.mover.status().state == "denied"
        assert stage.states() == {SEALED_HERE}
        check(topic, range(20))
    with Stage(tmp_path / "data", s3_tiering) as stage:
        stage.work()
        assert stage.states() == {TIERED_THERE}


class Lying(Wrapped):
    """Does something to an object right after it was uploaded, for as long as it is told to."""

    def __init__(self, inner: ObjectStore, spoil: Callable[[bytes], bytes]) -> None:
        super().__init__(inner)
        self._spoil = spoil
        self.is_lying = True

    def upload(self, key: str, chunks: object, *, size: int) -> ObjectInfo:
        info = super().upload(key, chunks, size=size)
        if self.is_lying:
            self.inner.put(
                key, self._spoil(bytes(self.inner.get_range(key, 0, size))), if_absent=False
            )
        return info


def test_another_store_than_the_one_that_has_the_copies(
    tmp_path: Path, tiering: TieringConfig
) -> None:
    """A mistyped prefix, or a share that is not mounted: nothing goes there, nothing goes here."""
    with Stage(tmp_path / "data", tiering) as stage:
        stage.create(local_retention_ms=0)
        stage.fill(0, 20)
        stage.work()
        assert stage.states() == {TIERED_THERE}
    other = dataclasses.replace(tiering, url=f"{tiering.url}-mistyped")
    with Stage(tmp_path / "data", other) as stage:
        stage.fill(20, 20)
        stage.work()
        status = stage.mover.status()
        assert (status.state, status.waiting_segments > 0) == ("other_store", True)
        assert "set tiering.url to where they are" in str(status.last_error)
        assert list(stage.objects.list("")) == []
        assert stage.states() == {TIERED_THERE, SEALED_HERE}
    with Stage(tmp_path / "data", tiering) as stage:
        stage.work()
        assert stage.states() == {TIERED_THERE}
        check(stage.store.topic(TOPIC), range(40))


@pytest.mark.parametrize(
    ("spoil", "reads_back"),
    [
        (lambda data: data[:-1], False),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), True),
    ],
    ids=["truncated", "corrupt"],
)
def test_an_object_that_is_not_what_was_sent(
    tmp_path: Path,
    tiering: TieringConfig,
    spoil: Callable[[bytes], bytes],
    reads_back: bool,
) -> None:
    made: list[Lying] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        made.append(Lying(inner, spoil))
        return made[0]

    config = dataclasses.replace(tiering, read_back=reads_back)
    with Stage(tmp_path / "data", config, wrap=wrap) as stage:
        topic = stage.create(local_retention_ms=0)
        stage.fill(0, 20)
        stage.work(rounds=3)
        status = stage.mover.status()
        assert status.failure_counts["verification"] >= 1
        assert status.waiting[0].attempt_count >= 1
        assert stage.states() == {SEALED_HERE}
        made[0].is_lying = False
        stage.work(rounds=20)
        assert stage.states() == {TIERED_THERE}
        check(topic, range(20))
        assert stage.mover.scrub(dry_run=True, grace_ms=0).orphan_count == 0


def test_a_changed_object_is_told_by_its_tag(tmp_path: Path, s3_tiering: TieringConfig) -> None:
    """S3 keeps a checksum of what it holds: no reading is needed to see that it is another."""
    with Stage(
        tmp_path / "data",
        s3_tiering,
        wrap=lambda inner: Lying(inner, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ) as stage:
        stage.create()
        stage.fill(0, 20)
        stage.work(rounds=2)
        assert stage.mover.status().failure_counts["verification"] >= 1
        assert stage.states() == {SEALED_HERE}


class Renaming(Wrapped):
    """Calls an object otherwise when it is written than when it is asked for."""

    def upload(self, key: str, chunks: object, *, size: int) -> ObjectInfo:
        return super().upload(key, chunks, size=size)._replace(e_tag="another")


def test_tags_that_mean_nothing_are_no_obstacle(tmp_path: Path, s3_tiering: TieringConfig) -> None:
    """What was uploaded is read then, and is right, or not."""
    with Stage(tmp_path / "right", s3_tiering, wrap=Renaming) as stage:
        stage.create()
        stage.fill(0, 20)
        stage.work()
        assert stage.states() == {TIERED_HERE}
        assert stage.mover.status().failure_counts["verification"] == 0

    def spoiling(inner: ObjectStore) -> ObjectStore:
        return Renaming(Lying(inner, lambda data: data[:-1] + bytes([data[-1] ^ 1])))

    other = dataclasses.replace(s3_tiering, url=f"{s3_tiering.url}-other")
    with Stage(tmp_path / "wrong", other, wrap=spoiling) as stage:
        stage.create()
        stage.fill(0, 20)
        stage.work(rounds=2)
        assert stage.mover.status().failure_counts["verification"] >= 1
        assert stage.states() == {SEALED_HERE}


def test_local_bytes_that_are_damaged_do_not_go(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create()
        stage.fill(0, 60)
        damaged = stage.metas()[1]
        shard = stage.store.topic(TOPIC).topic.shard_name(0)
        file = tmp_path / "data" / "segments" / shard / f"{damaged.base_offset:020d}.log"
        with file.open("r+b") as handle:
            handle.seek(damaged.length - 5)
            handle.write(b"\xff")
        stage.work(rounds=10)
        status = stage.mover.status()
        assert status.failure_counts["local"] >= 1
        assert status.state == "ok"
        # What is newer waits with it: the store would have a gap otherwise.
        newer = [m.seq for m in stage.metas() if m.is_sealed and m.seq >= damaged.seq]
        assert [row.segment_seq for row in status.waiting] == newer
        assert "CRC" in status.waiting[0].why or status.waiting[0].why == "next"
        assert {row.why for row in status.waiting[1:]} <= {
            f"segment {damaged.seq} of its shard has to go first",
            "next",
        }
        older = [m for m in stage.metas() if m.seq < damaged.seq]
        assert {m.state for m in older} == {TIERED_HERE[0]}
        assert len(stage.object_keys(".mf")) == len(older)
        stage.create("other")
        stage.fill(0, 12, "other")
        stage.work(rounds=10)
        assert stage.states("other") == {TIERED_HERE}, "others go on"
        report = recover_directory(tmp_path / "new", file_tiering, dry_run=True)
        ends = {each.topic: each.shards[0].end_offset for each in report.topics}
        assert (ends[TOPIC], report.gaps) == (damaged.base_offset, [])
        stage.store.topic(TOPIC).delete_before(damaged.end_offset)
        stage.wait_for_cache()
        stage.work(rounds=40)
        assert stage.states() == {TIERED_HERE}, "without it the rest can go"


@pytest.mark.parametrize("call", ["upload", "put", "head"])
def test_two_uploaders_at_once(tmp_path: Path, tiering: TieringConfig, call: str) -> None:
    """1. One uploader is in the middle of its work. 2. Another takes the segment over and finishes.
    3. The first is told so, and removes what it has written."""
    is_taken_over = False

    def watch(moment: str, name: str, key: str) -> None:
        nonlocal is_taken_over
        is_meant = (moment, name) == ("after", call) and key.endswith((".seg", ".idx"))
        if is_meant and not is_taken_over:
            is_taken_over = True
            stage.mover._uploader.upload(engine, record, shard, 0)

    with Stage(tmp_path / "data", tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        topic = stage.create()
        stage.fill(0, 12)
        shard = topic.topic.shard_name(0)
        engine = stage.local.engines[topic.topic.config.storage_type]
        found = stage.mover.ledger.topic_of(shard)
        assert found is not None
        record = found.record
        with pytest.raises(StaleEpoch):
            stage.mover._uploader.upload(engine, record, shard, 0)
        assert is_taken_over
        assert stage.states() == {TIERED_HERE}
        copy = stage.metas()[0].tier
        assert copy is not None
        assert sorted(stage.object_keys()) == sorted(copy.key + s for s in (".seg", ".idx", ".mf"))
        report = stage.mover.scrub(dry_run=True, grace_ms=0)
        assert (report.orphan_count, report.missing) == (0, [])


def test_a_copy_that_is_finished_while_it_is_given_up(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """1. An upload is about to be finished. 2. Tiering is turned off; the mover sees a copy that
    is not wanted. 3. The copy is finished. 4. The copy is in use now and is not removed."""
    unwanted: list = []

    def watch(moment: str, name: str, key: str) -> None:
        if (moment, name) == ("after", "put") and key.endswith(".mf") and not unwanted:
            config = topic.topic.config.with_options({"tiering": "off"})
            run_blocking(stage.local.manager.reconfigure_topic(TOPIC, config))
            stage.wait_for_cache()
            unwanted.extend(stage.mover.ledger.unwanted())

    with Stage(tmp_path / "data", file_tiering, wrap=lambda inner: Wrapped(inner, watch)) as stage:
        topic = stage.create()
        stage.fill(0, 12)
        shard = topic.topic.shard_name(0)
        found = stage.mover.ledger.topic_of(shard)
        assert found is not None
        engine = stage.local.engines[topic.topic.config.storage_type]
        stage.mover._uploader.upload(engine, found.record, shard, 0)
        assert len(unwanted) == 1
        stage.wait_for_cache()
        stage.mover.ledger.unwanted = lambda: unwanted  # type: ignore[method-assign]
        stage.mover.work()
        assert stage.states() == {TIERED_HERE}
        assert stage.mover.scrub(dry_run=True, grace_ms=0).missing == []
        check(topic, range(12))


def test_who_waits_for_an_upload_is_told_why_it_does_not_come(
    tmp_path: Path, s3_tiering: TieringConfig
) -> None:
    config = dataclasses.replace(s3_tiering, secret_key="wrong")
    with Stage(tmp_path / "data", config) as stage:
        stage.create()
        stage.fill(0, 12)
        with pytest.raises(TimedOut, match="1 segments are not in the object store yet: s3://"):
            stage.store.upload(timeout_s=0.1)


def test_a_store_that_does_not_answer_does_not_keep_a_node_from_stopping(
    tmp_path: Path, s3_tiering: TieringConfig, seaweed: SeaweedServer
) -> None:
    proxy = FaultProxy(("127.0.0.1", seaweed.port))
    config = dataclasses.replace(s3_tiering, endpoint=proxy.endpoint, timeout_ms=120_000)
    try:
        with firnmq.open(tmp_path / "data", tiering=config) as store:
            proxy.inject(Fault(is_silent=True))
            topic = store.create_topic(TOPIC, options=OPTIONS)
            topic.append(["one"])
            topic.roll()
            while not proxy.exchanges:
                time.sleep(0.01)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 60
    finally:
        proxy.stop()
    with Stage(tmp_path / "data", s3_tiering) as stage:
        stage.work()
        assert stage.states() == {TIERED_HERE}


def test_an_upload_of_another_is_left_alone_for_a_while(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """What another uploader has begun is not taken from it, whatever the clocks say."""
    from firnmq.engines.tiering.api import TierCopy

    clock = FakeClock()
    with Stage(tmp_path / "data", file_tiering, clock=clock) as stage:
        topic = stage.create()
        stage.fill(0, 12)
        engine = stage.local.engines[topic.topic.config.storage_type]
        others = TierCopy(upload_id="0123456789abcdef", key="x", started_ms=0)
        engine.begin_copy(topic.topic.shard_name(0), 0, others)
        stage.wait_for_cache()
        clock.advance(10 * 24 * 3600 * 1000)
        stage.mover.work()
        assert "another process" in stage.mover.status().waiting[0].why
        assert stage.states() == {SEALED_HERE}
    with Stage(tmp_path / "data", file_tiering, clock=clock) as stage:
        # After a restart no other process can have the directory open.
        stage.work()
        assert stage.states() == {TIERED_HERE}


def test_deletions_of_the_last_moment_are_in_the_store(
    tmp_path: Path, file_tiering: TieringConfig
) -> None:
    """1. Everything is uploaded, its deletions noted. 2. Records and a key are deleted, and the
    node ends at once. 3. It is lost: what was deleted stays deleted."""
    with Stage(tmp_path / "data", file_tiering, moves=True) as stage:
        topic = stage.create()
        stage.fill(0, 40)
        stage.mover.upload_now()
        topic.delete_by_offset(20)
        topic.delete_by_key(b"key-3", shard=0)
        topic.delete_before(10)
    recover_directory(tmp_path / "new", file_tiering)
    with Stage(tmp_path / "new", file_tiering) as stage:
        check(stage.store.topic(TOPIC), [n for n in range(10, 40) if n != 20 and n % 7 != 3])


def test_a_store_that_hangs_at_the_end_does_not_hold_it_up(
    tmp_path: Path, file_tiering: TieringConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written is written by the next life of the node."""
    monkeypatch.setattr(upkeep, "_FLUSH_S", 0.3)
    is_hanging, go_on = threading.Event(), threading.Event()

    def watch(moment: str, call: str, key: str) -> None:
        if threading.current_thread().name == "firn-tier-flush":
            is_hanging.set()
            go_on.wait(60)

    try:
        with Stage(
            tmp_path / "data",
            file_tiering,
            moves=True,
            wrap=lambda inner: Wrapped(inner, watch),
        ) as stage:
            topic = stage.create()
            stage.fill(0, 40)
            stage.mover.upload_now()
            topic.delete_by_offset(20)
            began = time.monotonic()
        assert time.monotonic() - began < 20
        assert is_hanging.is_set()
    finally:
        go_on.set()
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.work()
    recover_directory(tmp_path / "new", file_tiering)
    with Stage(tmp_path / "new", file_tiering) as stage:
        check(stage.store.topic(TOPIC), [n for n in range(40) if n != 20])
