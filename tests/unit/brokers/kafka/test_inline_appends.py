"""Produce requests appended inline while they are received, and fetches that wait for them."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from firnmq.brokers.kafka.handlers import fetch_quick
from firnmq.brokers.kafka.handlers.fetch_quick import FetchAnswer, FetchRoute, QuickFetch
from firnmq.brokers.kafka.protocol import ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersionsRequest
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from firnmq.config import Durability
from firnmq.disk import FileCache, files, pool
from firnmq.engines import inline as engines_inline
from firnmq.engines.media.durable import DurableKeeper
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.append import PreparedBatch
from firnmq.record import Compression, NewRecord, decode, encode
from tests.unit.brokers.kafka.stage import TOPIC, Stage, batch_of, on_stage, outcome, values_of


async def ready(stage: Stage, **config: object) -> None:
    """A topic whose next batch can be appended inline, and a client that is known."""
    await stage.create(**config)  # type: ignore[arg-type]
    for number in range(2):  # The first makes the file, which is noted once it was written to.
        stage.feed(stage.produce(number, batch_of(b"%d" % number)))
        await stage.answers(1)
    await until_idle(stage)


async def until_idle(stage: Stage) -> None:
    """Returns when the worker, if one was needed, has nothing to do any more."""
    topic = stage.storage.topic(TOPIC)
    driver = stage.storage.manager.driver_of(TOPIC)
    log = driver.open_log(topic.shard_name(0))
    if isinstance(log.keeper, DurableKeeper):
        lane = log.keeper._pool.lane(log._log.spec.uid)
        while not lane.may_append_inline():
            await asyncio.to_thread(int)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the event loop goes on to write by itself."""
    monkeypatch.setattr(pool, "_INLINE_SLOW_S", 1e9)


def fetched(message: Message) -> tuple[int, int, list[bytes | None]]:
    """Error, end and values of a fetch of one partition."""
    assert isinstance(message, FetchResponse)
    (partition,) = message.responses[0].partitions
    records = partition.records
    assert records is None or isinstance(records, (bytes, bytearray, memoryview))
    columns = decode([records]) if records else ()
    return (
        partition.error_code,
        partition.high_watermark,
        [bytes(value) if value is not None else None for value in columns.values]  # type: ignore[union-attr]
        if records
        else [],
    )


def test_the_answer_is_there_when_the_bytes_were_received(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await ready(stage)
        stage.feed(stage.produce(2, batch_of(b"2", b"3")))
        assert stage.transport.written, "no turn of the event loop was needed"
        assert outcome((await stage.answers(1))[0][1]) == (0, 2)
        assert await values_of(stage) == [b"0", b"1", b"2", b"3"]
        assert stage.node.broker.budget.used_bytes == 0
        counted = stage.node.broker.statistics.apis[0]
        assert counted.request_count == 3
        assert not counted.errors

    on_stage(tmp_path, act)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Base offsets of what was appended inline after `ready`."""
    found: list[int] = []
    take_written = engines_inline._take_written

    def note(log: ShardLog, batch: PreparedBatch, base_offset: int) -> None:
        if base_offset >= 2:
            found.append(base_offset)
        take_written(log, batch, base_offset)

    monkeypatch.setattr(engines_inline, "_take_written", note)
    return found


def kinds_of_batches() -> dict[str, Callable[[int], bytes]]:
    """What clients send; by name, the batch with the number."""

    def compressed(codec: Compression) -> Callable[[int], bytes]:
        return lambda number: bytes(
            encode([NewRecord(value=b"v" * number)], now_ms=1, compression=codec)
        )

    return {
        "idempotent": lambda number: batch_of(b"v" * number, producer=(9, number)),
        **{codec.name.lower(): compressed(codec) for codec in Compression},
    }


@pytest.mark.parametrize("kind", kinds_of_batches())
@pytest.mark.parametrize("indexed", [False, True])
def test_what_clients_send_is_appended_inline(
    tmp_path: Path, inline: list[int], kind: str, indexed: bool
) -> None:
    """Idempotent producers' batches and compressed ones too, also where keys and tags are indexed:
    these records have none."""
    batch = kinds_of_batches()[kind]

    async def act(stage: Stage) -> None:
        await ready(stage, index_key=indexed, index_tag=indexed)
        for number in range(2, 60):
            stage.feed(stage.produce(number, batch(number)))
            assert stage.transport.written, "no turn of the event loop was needed"
            assert outcome((await stage.answers(1))[0][1]) == (0, number)

    on_stage(tmp_path, act)
    assert inline == list(range(2, 60))


def test_a_repeated_batch_is_answered_inline_and_a_gap_refused(
    tmp_path: Path, inline: list[int]
) -> None:
    async def act(stage: Stage) -> None:
        await ready(stage)
        batches = {at: batch_of(b"%d" % at, producer=(9, at)) for at in (0, 1, 2, 5)}
        expected = [(0, 0, 2), (1, 0, 3), (0, 0, 2), (1, 0, 3)]
        expected += [(5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (2, 0, 4)]
        for number, (sequence, error, offset) in enumerate(expected):
            stage.feed(stage.produce(number, batches[sequence]))
            assert stage.transport.written
            assert outcome((await stage.answers(1))[0][1]) == (error, offset)
        assert await values_of(stage) == [b"0", b"1", b"0", b"1", b"2"]

    on_stage(tmp_path, act)
    assert inline == [2, 3, 4]


def test_producers_of_inline_appends_are_known_after_a_restart(
    tmp_path: Path, inline: list[int]
) -> None:
    async def write(stage: Stage) -> None:
        await ready(stage)
        for number in range(5):
            stage.feed(stage.produce(number, batch_of(b"p", producer=(9, number))))
            assert outcome((await stage.answers(1))[0][1]) == (0, 2 + number)

    async def repeat(stage: Stage) -> None:
        stage.feed(stage.produce(0, batch_of(b"p", producer=(9, 4))))
        assert outcome((await stage.answers(1))[0][1]) == (0, 6)
        stage.feed(stage.produce(1, batch_of(b"p", producer=(9, 7))))
        error, _ = outcome((await stage.answers(1))[0][1])
        assert error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    on_stage(tmp_path, write)
    assert len(inline) == 5
    on_stage(tmp_path, repeat)


@pytest.mark.parametrize(
    "config",
    [
        {"durability": Durability.FSYNC},
        {"durability": Durability.INTERVAL},
        {"storage_type": "EngineMemory"},
        {"storage_type": "EngineRocksDB"},
    ],
    ids=str,
)
def test_topics_that_need_more_have_a_turn(
    tmp_path: Path, config: dict[str, object], inline: list[int]
) -> None:
    """They take the fast path all the same: no coroutine, no future."""

    async def act(stage: Stage) -> None:
        await ready(stage, **config)

        async def refuse(frame: bytearray) -> bool:
            pytest.fail("a request took the slow path")

        stage.connection._begin = refuse  # type: ignore[method-assign]
        for number in range(2, 6):
            stage.feed(stage.produce(number, batch_of(b"%d" % number, producer=(9, number))))
            assert outcome((await stage.answers(1))[0][1]) == (0, number)
        assert await values_of(stage) == [b"%d" % number for number in range(6)]

    on_stage(tmp_path, act)
    assert inline == []


@pytest.mark.parametrize("config", [{"index_key": True}, {"index_tag": True}], ids=str)
def test_keys_and_tags_have_a_turn(
    tmp_path: Path, config: dict[str, object], inline: list[int]
) -> None:
    async def act(stage: Stage) -> None:
        await ready(stage, **config)
        record = NewRecord(value=b"v", key=b"k", tags=("t",))
        for number in range(2, 6):
            stage.feed(stage.produce(number, bytes(encode([record], now_ms=1))))
            assert outcome((await stage.answers(1))[0][1]) == (0, number)

    on_stage(tmp_path, act)
    assert inline == []


def test_options_that_change_hold_for_the_next_request(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await ready(stage)
        config = dataclasses.replace(stage.storage.topic(TOPIC).config, max_record_bytes=100)
        await stage.storage.manager.reconfigure_topic(TOPIC, config)
        for number in (2, 3):
            stage.feed(stage.produce(number, batch_of(bytes(200))))
            error, _ = outcome((await stage.answers(1))[0][1])
            assert error == ErrorCode.MESSAGE_TOO_LARGE
        stage.feed(stage.produce(4, batch_of(b"small")))
        assert outcome((await stage.answers(1))[0][1]) == (0, 2)

    on_stage(tmp_path, act)


DURABLE_COUNT = 60
"""Batches of 4 KiB after which a durable topic's file is preallocated, and its device known."""


async def ready_durable(stage: Stage) -> None:
    """A topic whose batches are synced, with a file that is preallocated."""
    await stage.create(durability=Durability.FSYNC)
    for number in range(DURABLE_COUNT):
        stage.feed(stage.produce(number, batch_of(b"v" * 4096)))
        await stage.answers(1)
        await until_idle(stage)


async def appended_durably(stage: Stage, *numbers: int) -> None:
    for number in numbers:
        stage.feed(stage.produce(number, batch_of(b"%d" % number)))
        assert outcome((await stage.answers(1))[0][1]) == (0, number)
        await until_idle(stage)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device is quick, and event loops have time to wait for it."""
    monkeypatch.setattr(files, "_QUICK_SYNC_S", 1e9)
    monkeypatch.setattr(engines_inline, "_PAUSE_PER_SYNC", 0.0)


@pytest.mark.usefixtures("quick")
def test_a_quick_device_is_waited_for_inline(
    tmp_path: Path, inline: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The event loop syncs by itself. 2. What it has synced is there after a restart, and its
    producer is known."""
    durably: list[bool] = []
    write_at = FileCache.write_at

    def note(
        files: FileCache, path: str, buffers: list[bytes], at: int, *, durable: bool = False
    ) -> int:
        durably.append(durable)
        return write_at(files, path, buffers, at, durable=durable)

    async def write(stage: Stage) -> None:
        await ready_durable(stage)
        inline.clear()
        monkeypatch.setattr(FileCache, "write_at", note)
        for number in range(5):
            stage.feed(stage.produce(number, batch_of(b"%d" % number, producer=(9, number))))
            assert stage.transport.written, "no turn of the event loop was needed"
            assert outcome((await stage.answers(1))[0][1]) == (0, DURABLE_COUNT + number)
        assert durably == [True] * 5

    async def read(stage: Stage) -> None:
        stage.feed(stage.produce(0, batch_of(b"4", producer=(9, 4))))
        assert outcome((await stage.answers(1))[0][1]) == (0, DURABLE_COUNT + 4)
        assert (await values_of(stage))[DURABLE_COUNT:] == [b"%d" % each for each in range(5)]

    on_stage(tmp_path, write)
    assert inline == list(range(DURABLE_COUNT, DURABLE_COUNT + 5))
    on_stage(tmp_path, read)


@pytest.mark.usefixtures("quick")
def test_a_device_that_is_slow_once_is_left_to_the_worker(
    tmp_path: Path, inline: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(stage: Stage) -> None:
        await ready_durable(stage)
        inline.clear()
        await appended_durably(stage, 60)
        monkeypatch.setattr(files, "_QUICK_SYNC_S", -1.0)
        await appended_durably(stage, 61)  # Took longer than that.
        monkeypatch.setattr(files, "_QUICK_SYNC_S", 1e9)
        await appended_durably(stage, *range(62, 62 + files._QUICK_SYNCS_MIN))
        await appended_durably(stage, 62 + files._QUICK_SYNCS_MIN)

    on_stage(tmp_path, act)
    assert inline == [60, 61, 62 + files._QUICK_SYNCS_MIN]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("constant", ["_PAUSE_PER_SYNC", "_SHARED_PAUSE_S"])
def test_event_loops_wait_for_a_device_only_now_and_then(
    tmp_path: Path, inline: list[int], monkeypatch: pytest.MonkeyPatch, constant: str
) -> None:
    """After a sync inline, and after a turn that several requests shared."""

    async def act(stage: Stage) -> None:
        await ready_durable(stage)
        inline.clear()
        monkeypatch.setattr(engines_inline, constant, 1e9)
        await appended_durably(stage, 60)
        stage.feed(b"".join(stage.produce(at, batch_of(b"%d" % at)) for at in (61, 62)))
        await stage.answers(2)
        await until_idle(stage)
        await appended_durably(stage, 63, 64)

    on_stage(tmp_path, act)
    assert inline == [60]


def test_a_failed_write_is_told_and_the_log_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A write fails half-way. 2. The client is told. 3. The next batch takes its place."""

    async def act(stage: Stage) -> None:
        await ready(stage)
        write_at = FileCache.write_at

        def fail(files: FileCache, path: str, buffers: list[bytes], at: int, **_: bool) -> int:
            write_at(files, path, [bytes(buffers[0])[:20]], at)
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(FileCache, "write_at", fail)
        stage.feed(stage.produce(2, batch_of(b"lost")))
        error, offset = outcome((await stage.answers(1))[0][1])
        assert (error, offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        monkeypatch.setattr(FileCache, "write_at", write_at)
        for number in (3, 4, 5):
            stage.feed(stage.produce(number, batch_of(b"%d" % number)))
            assert outcome((await stage.answers(1))[0][1]) == (0, number - 1)
        assert await values_of(stage) == [b"0", b"1", b"3", b"4", b"5"]
        assert stage.node.broker.statistics.apis[0].errors == {int(error): 1}

    on_stage(tmp_path, act)


def test_what_was_appended_inline_is_there_after_a_restart(tmp_path: Path) -> None:
    async def write(stage: Stage) -> None:
        await ready(stage)
        for number in range(2, 300):
            stage.feed(stage.produce(number, batch_of(b"%d" % number * 100)))
            await stage.answers(1)

    async def read(stage: Stage) -> None:
        values = await values_of(stage)
        assert values == [b"0", b"1", *(b"%d" % number * 100 for number in range(2, 300))]
        stage.feed(stage.produce(0, batch_of(b"next")))
        assert outcome((await stage.answers(1))[0][1]) == (0, 300)

    on_stage(tmp_path, write)
    on_stage(tmp_path, read)


def test_segments_roll_between_inline_appends(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await ready(stage, segment_bytes=64 * 1024)
        for number in range(2, 200):
            stage.feed(stage.produce(number, batch_of(b"%03d" % number * 300)))
            assert outcome((await stage.answers(1))[0][1]) == (0, number)

    on_stage(tmp_path, act)
    assert len(list(tmp_path.rglob("*.log"))) > 2


# Waiting for them --------------------------------------------------------------------------------


async def waiting(stage: Stage, reader: Stage, offset: int, **options: int) -> None:
    """A reader that waits for the offset without a coroutine."""
    reader.feed(reader.fetch(1, offset - 1, **options))  # Learned from.
    await reader.answers(1)
    reader.feed(reader.fetch(2, offset, **options))
    assert isinstance(reader.connection._waiting, FetchAnswer)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", range(4, 13))
def test_a_waiting_fetch_is_answered_with_the_batch(
    tmp_path: Path, version: int, isolation_level: int
) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        options = {"version": version, "isolation_level": isolation_level}
        await waiting(stage, reader, 2, **options)
        stage.feed(stage.produce(2, batch_of(b"new", b"newer")))
        assert reader.transport.written, "no turn of the event loop was needed"
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 4, [b"new", b"newer"])
        # The next one finds something: it is read, and what it gives is what the codec gives.
        stage.feed(stage.produce(3, batch_of(b"newest")))
        reader.feed(reader.fetch(3, 4, **options))
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 5, [b"newest"])
        assert stage.node.broker.budget.used_bytes == 0
        assert stage.node.broker.statistics.apis[1].request_count == 3
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


def test_a_waiting_fetch_gets_the_one_batch_of_a_turn_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's turn hands it over like an inline append; after a repeated batch it is read."""
    reads: list[int] = []
    read = QuickFetch.read

    def note(
        quick: QuickFetch, route: FetchRoute, correlation_id: int, offset: int
    ) -> bytes | None:
        reads.append(offset)
        return read(quick, route, correlation_id, offset)

    monkeypatch.setattr(QuickFetch, "read", note)

    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage, durability=Durability.FSYNC)
        await waiting(stage, reader, 2)
        reads.clear()
        first = batch_of(b"first", b"second", producer=(9, 0))
        stage.feed(stage.produce(2, first))
        await stage.answers(1)
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 4, [b"first", b"second"])
        assert reads == []

        reader.feed(reader.fetch(3, 4))
        again = batch_of(b"first", b"second", producer=(9, 0))
        stage.feed(stage.produce(3, again))
        stage.feed(stage.produce(4, batch_of(b"third", producer=(9, 2))))
        await stage.answers(2)
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 5, [b"third"])
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_waiting_fetch_is_answered_after_any_append(
    tmp_path: Path, compression: Compression
) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        await waiting(stage, reader, 2)
        batch = bytes(encode([NewRecord(value=b"other")], now_ms=1, compression=compression))
        stage.feed(stage.produce(2, batch) + stage.produce(3, batch))
        await stage.answers(2)
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 4, [b"other"] * 2)
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


def test_one_that_wants_more_waits_on(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        stage.feed(stage.produce(2, batch_of(bytes(400))))
        await stage.answers(1)
        await waiting(stage, reader, 3, min_bytes=300)
        stage.feed(stage.produce(3, batch_of(b"too little")))
        await stage.answers(1)
        stage.feed(stage.produce(4, batch_of(bytes(400))))
        await stage.answers(1)
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 5, [b"too little", bytes(400)])
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


def test_one_whose_time_is_over_is_answered_with_nothing(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        await waiting(stage, reader, 2, max_wait_ms=20)
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 2, [])
        assert reader.connection._waiting is None
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


def test_requests_behind_a_waiting_one_are_answered_after_it(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        await waiting(stage, reader, 2)
        reader.feed(reader.request(3, 18, ApiVersionsRequest()))
        reader.feed(reader.produce(4, batch_of(b"its own")))
        reader.feed(reader.fetch(5, 3))
        assert await values_of(stage) == [b"0", b"1"]
        assert not reader.transport.written
        stage.feed(stage.produce(2, batch_of(b"awaited")))
        found = await reader.answers(4)
        assert [correlation_id for correlation_id, _ in found] == [2, 3, 4, 5]
        assert fetched(found[0][1]) == (0, 3, [b"awaited"])
        assert fetched(found[3][1]) == (0, 4, [b"its own"])
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


@pytest.mark.parametrize("goes_on", [False, True], ids=["waits", "looks"])
def test_a_client_that_is_gone_waits_for_nothing(tmp_path: Path, goes_on: bool) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        await waiting(stage, reader, 2)
        answer = reader.connection._waiting
        assert isinstance(answer, FetchAnswer)
        if goes_on:
            answer._go_on()
        reader.connection.connection_lost(None)
        assert answer.is_ready
        assert reader.connection.task is not None
        await reader.connection.task
        stage.feed(stage.produce(2, batch_of(b"for nobody")))
        await stage.answers(1)
        assert stage.node.broker.budget.used_bytes == 0
        assert not reader.transport.written

    on_stage(tmp_path, act)


def test_a_node_that_stops_gives_waiting_ones_up(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        await waiting(stage, reader, 2)
        reader.connection.stop()
        assert reader.connection.task is not None
        await asyncio.wait_for(reader.connection.task, 20)
        assert reader.transport.is_closed
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


def test_deleted_records_are_not_given_to_waiting_ones(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        driver = stage.storage.manager.driver_of(TOPIC)
        await driver.delete_by_offset(stage.storage.topic(TOPIC).shard_name(0), 0)
        await waiting(stage, reader, 3)
        stage.feed(stage.produce(2, batch_of(b"kept")))
        ((_, message),) = await reader.answers(1)
        assert fetched(message) == (0, 4, [b"kept"])
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


def test_a_topic_that_is_deleted_is_told_when_the_wait_ends(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        await waiting(stage, reader, 2, max_wait_ms=100)
        await stage.storage.manager.delete_topic(TOPIC)
        ((_, message),) = await reader.answers(1)
        assert fetched(message)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        reader.feed(reader.fetch(3, 2))
        ((_, message),) = await reader.answers(1)
        assert fetched(message)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


def test_a_defect_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(stage: Stage) -> None:
        reader = Stage(stage.node)
        await ready(stage)
        await waiting(stage, reader, 2)

        async def break_down(*arguments: object, **options: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(fetch_quick.FetchHandler, "handle", break_down)
        answer = reader.connection._waiting
        assert isinstance(answer, FetchAnswer)
        answer._go_on()
        assert answer._task is not None
        await asyncio.wait([answer._task])
        assert reader.transport.is_closed
        reader.connection.connection_lost(None)

    on_stage(tmp_path, act)


@pytest.mark.parametrize("bad", [{"session_epoch": 1}, {"current_leader_epoch": 1}], ids=str)
def test_a_fetch_that_is_wrong_never_waits(tmp_path: Path, bad: dict[str, int]) -> None:
    """At the end of the log, before and after a request that is right has been learned."""

    def wrong(stage: Stage, number: int) -> bytes:
        wanted = FetchPartition(
            partition=0,
            fetch_offset=1,
            partition_max_bytes=1_000_000,
            current_leader_epoch=bad.get("current_leader_epoch", 0),
        )
        request = FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            session_epoch=bad.get("session_epoch", -1),
            topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
        )
        return stage.request(number, 1, request, 12)

    async def act(stage: Stage) -> None:
        await stage.create()
        stage.feed(stage.produce(0, batch_of(b"v")))
        await stage.answers(1)
        for number in (1, 2, 4, 5):
            stage.feed(wrong(stage, number))
            ((_, message),) = await stage.answers(1)
            assert isinstance(message, FetchResponse)
            codes = [data.error_code for topic in message.responses for data in topic.partitions]
            if "session_epoch" in bad:
                assert message.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            else:
                assert codes == [ErrorCode.UNKNOWN_LEADER_EPOCH]
            if number == 2:
                stage.feed(stage.fetch(3, 0, max_wait_ms=1))
                await stage.answers(1)

    on_stage(tmp_path, act)
