"""What a fetch gives: limits, waiting, and one thread hop at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from firnmq.brokers.kafka.handlers.fetch import FetchHandler, FetchTurns
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import TopicConfig
from firnmq.disk import FileRange
from firnmq.disk import ranges as ranges_module
from firnmq.record import NewRecord, encode
from firnmq.server import LocalStore
from tests.unit.brokers.kafka.stage import append_to

VALUE_BYTES = 40_000


class ObservedStorage(KafkaStorage):
    """Tells when a client begins to wait."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store.manager)
        self.waits = asyncio.Event()

    async def wait_for_append(
        self, partitions: Iterable[tuple[str, int, int]], timeout_s: float
    ) -> None:
        self.waits.set()
        await super().wait_for_append(partitions, timeout_s)


class Scene:
    """A topic with three partitions, and a client of it."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.storage = ObservedStorage(store)
        self.handler = FetchHandler(self.storage, Turns())

    async def produce(self, partition: int, *values: bytes) -> None:
        batch = encode([NewRecord(value=value) for value in values], now_ms=1)
        await append_to(self.storage, "t", partition, batch)

    async def fetch(
        self,
        *wanted: tuple[int, int],
        topic: str = "t",
        min_bytes: int = 0,
        max_wait_ms: int = 0,
        max_bytes: int = 10**8,
        partition_max_bytes: int = 10**6,
        takes_ranges: bool = True,
        turns: FetchTurns | None = None,
    ) -> list[PartitionData]:
        partitions = tuple(
            FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes
            )
            for partition, offset in wanted
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=(FetchTopic(topic=topic, partitions=partitions),),
        )
        response = await self.handler.handle(request, takes_ranges=takes_ranges, turns=turns)
        return list(response.responses[0].partitions)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = LocalStore(tmp_path, background=False)
    await store.manager.create_topic("t", 3, TopicConfig())
    yield Scene(store)
    store.close()


def sizes(found: list[PartitionData]) -> list[int]:
    return [sum(map(len, data.records or ())) for data in found]  # type: ignore[arg-type]


async def test_every_partition_is_answered_in_order(scene: Scene) -> None:
    await scene.produce(1, b"v" * VALUE_BYTES)
    found = await scene.fetch((2, 0), (1, 0), (7, 0), (0, 5))
    assert [data.partition_index for data in found] == [2, 1, 7, 0]
    assert [data.error_code for data in found] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]
    assert [data.high_watermark for data in found] == [0, 1, -1, 0]
    assert [size > 0 for size in sizes(found)] == [False, True, False, False]


async def test_large_contents_are_ranges_for_those_who_take_them(scene: Scene) -> None:
    await scene.produce(0, b"v" * VALUE_BYTES)
    (ranged,) = await scene.fetch((0, 0))
    (copied,) = await scene.fetch((0, 0), takes_ranges=False)
    assert isinstance(ranged.records[0], FileRange)  # type: ignore[index]
    assert not isinstance(copied.records[0], FileRange)  # type: ignore[index]
    assert sizes([ranged]) == sizes([copied])


async def test_a_response_has_a_limit_but_for_the_first_batch(scene: Scene) -> None:
    for partition in range(3):
        await scene.produce(partition, b"v" * VALUE_BYTES)
    one, *none = sizes(await scene.fetch((0, 0), (1, 0), (2, 0), max_bytes=1))
    assert one > VALUE_BYTES
    assert none == [0, 0]
    assert sizes(await scene.fetch((2, 0), (0, 0), max_bytes=1)) == [one, 0]
    assert sizes(await scene.fetch((0, 0), (1, 0), max_bytes=2 * one - 1)) == [one, 0]
    assert sizes(await scene.fetch((0, 0), (1, 0), max_bytes=2 * one)) == [one, one]
    for _ in range(3):
        await scene.produce(0, b"v" * VALUE_BYTES)
    assert sizes(await scene.fetch((0, 0), partition_max_bytes=2 * one + 9)) == [2 * one]
    assert sizes(await scene.fetch((0, 0), partition_max_bytes=0)) == [one]


@pytest.mark.parametrize("takes_ranges", [True, False])
@pytest.mark.parametrize("storage_type", ["EngineMemory", "EngineRocksDB", "EngineSegment"])
async def test_only_the_first_partition_with_records_may_exceed_a_limit(
    scene: Scene, storage_type: str, takes_ranges: bool
) -> None:
    await scene.store.manager.create_topic("u", 3, TopicConfig(storage_type=storage_type))
    batch = encode([NewRecord(value=b"v" * VALUE_BYTES)], now_ms=1)
    one = len(batch)
    for partition in (1, 2):
        await append_to(scene.storage, "u", partition, bytearray(batch))
    await append_to(scene.storage, "u", 2, bytearray(batch))

    async def given(**limits: int) -> list[int]:
        wanted = ((0, 0), (1, 0), (2, 0))
        return sizes(await scene.fetch(*wanted, topic="u", takes_ranges=takes_ranges, **limits))

    assert await given(partition_max_bytes=100) == [0, one, 0]
    assert await given(max_bytes=2 * one - 1) == [0, one, 0]
    assert await given(max_bytes=3 * one - 1) == [0, one, one]
    assert await given(max_bytes=3 * one) == [0, one, 2 * one]
    assert await given(partition_max_bytes=one) == [0, one, one]
    # A response that has no space left is not held back for more.
    assert await given(max_bytes=one, min_bytes=10**6, max_wait_ms=30_000) == [0, one, 0]


async def test_partitions_that_were_left_out_come_first_next_time(scene: Scene) -> None:
    class Client:
        fetch_first: tuple[str, int] | None = None

    for partition in range(3):
        for _ in range(3):
            await scene.produce(partition, b"v" * VALUE_BYTES)
    client = Client()
    offsets = [0, 0, 0]
    for _ in range(9):
        found = await scene.fetch(*enumerate(offsets), max_bytes=1, turns=client)
        assert [data.partition_index for data in found] == [0, 1, 2]
        (given,) = [at for at, size in enumerate(sizes(found)) if size]
        offsets[given] += 1
        assert max(offsets) - min(offsets) <= 1
    assert offsets == [3, 3, 3]
    await scene.fetch(*enumerate(offsets), turns=client)
    assert client.fetch_first is None


@pytest.mark.parametrize(("session_id", "epoch"), [(0, 1), (7, 1), (7, 5), (0, -2)])
async def test_a_session_that_there_is_not_is_refused(
    scene: Scene, session_id: int, epoch: int
) -> None:
    request = FetchRequest(
        max_wait_ms=30_000, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=()
    )
    response = await scene.handler.handle(request)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert response.session_id == 0
    assert response.responses == ()


@pytest.mark.parametrize("session", [(0, 0), (0, -1), (7, 0), (7, -1)])
async def test_full_requests_need_no_session(scene: Scene, session: tuple[int, int]) -> None:
    session_id, epoch = session
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=epoch, topics=()
    )
    assert (await scene.handler.handle(request)).error_code == ErrorCode.NONE


async def test_the_leader_epoch_that_a_client_knows_is_judged(scene: Scene) -> None:
    await scene.produce(0, b"v")
    codes = []
    for epoch in (-1, 0, 1):
        wanted = FetchPartition(
            partition=0, fetch_offset=0, partition_max_bytes=100, current_leader_epoch=epoch
        )
        request = FetchRequest(
            max_wait_ms=30_000,
            min_bytes=1,
            topics=[FetchTopic(topic="t", partitions=[wanted])],
        )
        (data,) = (await scene.handler.handle(request)).responses[0].partitions
        codes.append(data.error_code)
        assert (sizes([data]) == [0]) is (data.error_code != 0)
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]


async def test_a_waiting_client_is_answered_by_the_append(scene: Scene) -> None:
    waiting = asyncio.ensure_future(
        scene.fetch((0, 0), (1, 0), (2, 0), min_bytes=1, max_wait_ms=30_000)
    )
    await scene.storage.waits.wait()
    assert not waiting.done()
    await scene.produce(2, b"late")
    found = await asyncio.wait_for(waiting, 20)
    assert [size > 0 for size in sizes(found)] == [False, False, True]


async def test_a_waiting_client_gets_as_much_as_it_wants_or_what_there_is(scene: Scene) -> None:
    await scene.produce(0, b"v" * 100)
    (little,) = sizes(await scene.fetch((0, 0), min_bytes=10**6, max_wait_ms=1))
    assert little > 0
    waiting = asyncio.ensure_future(
        scene.fetch((0, 0), min_bytes=2 * VALUE_BYTES, max_wait_ms=30_000)
    )
    for _ in range(2):
        assert not waiting.done()
        await scene.produce(0, b"v" * VALUE_BYTES)
    (much,) = sizes(await asyncio.wait_for(waiting, 20))
    assert much > 2 * VALUE_BYTES


async def test_an_error_is_not_waited_with(scene: Scene) -> None:
    found = await asyncio.wait_for(scene.fetch((0, 9), min_bytes=1, max_wait_ms=30_000), 20)
    assert found[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_what_has_to_be_read_is_read_in_one_thread(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(3):
        await scene.produce(partition, b"v" * VALUE_BYTES)
    driver = scene.storage.partition("t", 0).driver
    hops = []
    in_reader = driver.in_reader

    def counted(function):  # type: ignore[no-untyped-def]
        hops.append(function)
        return in_reader(function)

    monkeypatch.setattr(driver, "in_reader", counted)
    assert all(sizes(await scene.fetch((0, 0), (1, 0), (2, 0))))
    assert hops == [], "what was just appended needs no thread"
    for partition in range(3):
        shard = scene.storage.shard("t", partition)
        scene.store.engines["EngineSegment"].roll(shard)
    assert all(sizes(await scene.fetch((0, 0), (1, 0), (2, 0))))
    assert len(hops) == 1
    assert all(sizes(await scene.fetch((0, 0), (1, 0), (2, 0))))
    assert len(hops) == 1, "what was checked once needs none either"


async def test_a_topic_made_anew_is_another_one(scene: Scene) -> None:
    await scene.produce(0, b"old")
    assert sizes(await scene.fetch((0, 0)))[0] > 0
    await scene.store.manager.delete_topic("t")
    (gone,) = await scene.fetch((0, 0))
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await scene.store.manager.create_topic("t", 1, TopicConfig())
    (empty,) = await scene.fetch((0, 0))
    assert (empty.error_code, empty.high_watermark) == (ErrorCode.NONE, 0)


async def test_a_flipped_bit_is_an_error_and_not_data(scene: Scene) -> None:
    await scene.produce(0, b"v" * VALUE_BYTES)
    await scene.produce(0, b"w" * VALUE_BYTES)
    shard = scene.storage.shard("t", 0)
    scene.store.engines["EngineSegment"].roll(shard)
    (file,) = (scene.store.path / "segments" / shard).glob("*0.log")
    damaged = bytearray(file.read_bytes())
    damaged[-100] ^= 1
    file.write_bytes(damaged)
    (found,) = await scene.fetch((0, 0))
    assert VALUE_BYTES < sizes([found])[0] < 2 * VALUE_BYTES, "the good batch alone"
    (bad,) = await scene.fetch((0, 1))
    assert bad.error_code == ErrorCode.CORRUPT_MESSAGE
    assert not bad.records


async def test_what_is_copied_is_limited_whatever_the_client_asks_for(scene: Scene) -> None:
    value = b"v" * 1_000_000
    for partition in range(3):
        for _ in range(5):
            await scene.produce(partition, value)
    wanted = ((0, 0), (1, 0), (2, 0))
    by_range = sizes(await scene.fetch(*wanted, partition_max_bytes=10**7))
    assert by_range == [by_range[0]] * 3
    assert by_range[0] > 5 * len(value)
    copied = sizes(await scene.fetch(*wanted, partition_max_bytes=10**7, takes_ranges=False))
    assert len(value) < sum(copied) < 10 * len(value)
    assert copied[0] > 0


async def test_where_too_much_is_mapped_it_is_copied(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.produce(0, b"v" * VALUE_BYTES)
    monkeypatch.setattr(ranges_module, "MAPPINGS_MAX", 0)
    (found,) = await scene.fetch((0, 0))
    assert sizes([found])[0] > VALUE_BYTES
    assert not isinstance(found.records[0], FileRange)  # type: ignore[index]
