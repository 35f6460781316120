"""ListOffsets by time over partitions that are in the object store alone."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.brokers.kafka.handlers import lookup
from firnmq.brokers.kafka.handlers.lookup import LookupHandler
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import StoreConfig, TieringConfig
from firnmq.errors import StoreUnavailable
from firnmq.tiering.stores import ObjectStore
from tests.integration.tiering.stage import FIRST_MS, TOPIC, Stage, Wrapped, record_of

COLD = 12
THREADS = 2
HOT = "hot"


class Scene:
    """Twelve cold partitions and a hot one, and a store that can be broken."""

    def __init__(self, path: Path, tiering: TieringConfig) -> None:
        self.fault: str | None = None
        self.asked: list[str] = []
        self.go_on = threading.Event()
        self.stage = Stage(
            path, tiering, wrap=self._wrap, config=StoreConfig(cold_read_threads=THREADS)
        )
        topic = self.stage.create(shards=COLD, local_retention_ms=0, local_retention_bytes=0)
        for shard in range(COLD):
            topic.append([record_of(number) for number in range(8)], shard=shard)
        self.stage.local.roll_tiered()
        self.stage.wait_for_cache()
        self.stage.work(rounds=40)
        hot = self.stage.store.create_topic(HOT)
        hot.append([record_of(number) for number in range(8)])
        assert self.stage.mover.status().local_segments == 0

    def _wrap(self, inner: ObjectStore) -> ObjectStore:
        return Wrapped(inner, self._watch)

    def _watch(self, moment: str, call: str, key: str) -> None:
        if moment != "before" or call != "get_range" or self.fault is None:
            return
        self.asked.append(key)
        if self.fault == "hangs" or (self.fault == "down" and key != self.asked[0]):
            self.go_on.wait(60)
        raise StoreUnavailable("file://", "is down", key=key)

    def list_offsets(self, timestamp: int) -> dict[str, list[tuple[int, int]]]:
        handler = LookupHandler(KafkaStorage(self.stage.local.manager), Turns())
        request = ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(partition_index=at, timestamp=timestamp)
                        for at in range(count)
                    ],
                )
                for name, count in ((TOPIC, COLD), (HOT, 1))
            ]
        )

        async def ask() -> ListOffsetsResponse:
            return await handler.list_offsets(request, 8)

        return {
            topic.name: [(part.offset, part.error_code) for part in topic.partitions]
            for topic in asyncio.run(ask()).topics
        }


@pytest.fixture
def scene(tmp_path: Path, file_tiering: TieringConfig) -> Iterator[Scene]:
    scene = Scene(tmp_path / "data", file_tiering)
    yield scene
    scene.fault = None
    scene.go_on.set()
    scene.stage.store.close()


def test_every_partition_is_found(scene: Scene) -> None:
    found = scene.list_offsets(FIRST_MS + 3000)
    assert found == {TOPIC: [(3, 0)] * COLD, HOT: [(3, 0)]}
    assert scene.list_offsets(FIRST_MS + 99_000) == {TOPIC: [(-1, 0)] * COLD, HOT: [(-1, 0)]}


def test_a_store_that_is_down_is_not_waited_for_again_and_again(scene: Scene) -> None:
    """The first failure ends the request, although whatever else is asked would hang."""
    scene.fault = "down"
    found = scene.list_offsets(FIRST_MS + 3000)
    assert found == {TOPIC: [(-1, ErrorCode.KAFKA_STORAGE_ERROR)] * COLD, HOT: [(3, 0)]}
    assert 0 < len(set(scene.asked)) <= THREADS + 1
    scene.fault = None
    scene.go_on.set()
    assert scene.list_offsets(FIRST_MS + 3000)[TOPIC] == [(3, 0)] * COLD


def test_a_store_that_hangs_holds_up_the_request_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_STORE_WAIT_S", 0.3)
    scene.fault = "hangs"
    found: list[object] = []
    asking = threading.Thread(
        target=lambda: found.append(scene.list_offsets(FIRST_MS + 3000)), daemon=True
    )
    asking.start()
    asking.join(20)  # What hangs goes on after it: nothing was let go yet.
    assert found == [{TOPIC: [(-1, ErrorCode.REQUEST_TIMED_OUT)] * COLD, HOT: [(3, 0)]}]
    assert len(scene.asked) <= THREADS
