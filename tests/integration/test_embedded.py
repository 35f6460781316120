"""The embedded store as users see it: threads, asyncio, restarts, a second process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import firnmq
from firnmq import AdapterOffsetStrategy, NewRecord
from firnmq.errors import (
    AlreadyExists,
    Closed,
    DirectoryInUse,
    IndexDisabled,
    InvalidArgument,
    KeyNotFound,
    OffsetOutOfRange,
    ShardNotFound,
    TopicNotFound,
)

TYPES = ["EngineMemory", "EngineRocksDB", "EngineSegment"]

WRITER = """
import sys
import firnmq
store = firnmq.open(sys.argv[1])
topic = store.create_topic("t", options={"storage.type": sys.argv[2], "segment.bytes": 4096})
for number in range(1_000_000):
    offset = topic.append(b"%d" % number)[0].base_offset
    print(offset, flush=True)
"""


@pytest.mark.parametrize("storage_type", TYPES)
def test_errors_name_shards_as_users_do(tmp_path: Path, storage_type: str) -> None:
    """Not as they are called on disk."""
    with firnmq.open(tmp_path) as store:
        options = {"storage.type": storage_type, "index.tag": False}
        topic = store.create_topic("orders", shards=2, options=options)
        topic.append(b"one", shard=1)
        shown = "shard 1 of topic 'orders'"
        said = rf"offset 7 of {shown} is outside \[0, 1\)"
        for question in (topic.read, topic.delete_before):
            with pytest.raises(OffsetOutOfRange, match=said) as caught:
                question(7, shard=1)
            assert caught.value.shard == shown
        with pytest.raises(KeyNotFound, match=f"with key 'k' in {shown}$"):
            topic.read_by_key("k", shard=1)
        with pytest.raises(IndexDisabled, match=f"^{shown} keeps no tag index"):
            topic.read_by_tag("t", shard=1)


@pytest.mark.parametrize("storage_type", TYPES)
def test_a_topic_from_a_thread(tmp_path: Path, storage_type: str) -> None:
    with firnmq.open(tmp_path) as store:
        topic = store.create_topic("t", shards=1, options={"storage.type": storage_type})
        assert topic.append("text")[0].base_offset == 0
        topic.append([b"bytes", NewRecord(value=b"rich", key=b"k", tags=("red",), timestamp_ms=5)])
        topic.append(b"%d" % number for number in range(50))
        assert [record.value for record in topic.read(max_records=3)] == [
            b"text",
            b"bytes",
            b"rich",
        ]
        assert topic.read_by_key("k").value == topic.read_by_key(b"k").value == b"rich"
        assert [record.offset for record in topic.read_by_tag("red")] == [2]
        assert topic.offset_at(2**50) == 53
        assert topic.offset_at(2**50, otherwise=AdapterOffsetStrategy.EARLIEST) == 0
        topic.roll()
        topic.delete_by_key("k")
        topic.delete_by_offset(0)
        topic.delete_before(1)
        assert len(list(topic.records(1))) == 51
        assert topic.read(1).to_arrow().num_rows == 51
        topic.commit("g", {0: 9})
        assert topic.committed("g") == {0: 9}
        status = topic.status()
        assert (status.start_offset, status.end_offset, len(status.segments)) == (1, 55, 2)


@pytest.mark.parametrize("storage_type", TYPES)
async def test_a_topic_from_asyncio(tmp_path: Path, storage_type: str) -> None:
    async with await firnmq.open_async(tmp_path) as store:
        topic = await store.create_topic("t", options={"storage.type": storage_type})
        written = await asyncio.gather(*(topic.append(b"%d" % number) for number in range(500)))
        assert sorted(each[0].base_offset for each in written) == list(range(500))
        assert [record.offset async for record in topic.records()] == list(range(500))
        await topic.append(NewRecord(value=b"v", key=b"k", tags=("t",)))
        assert (await topic.read_by_key("k")).offset == 500
        assert len(await topic.read_by_tag("t")) == 1
        await topic.delete_by_key("k")
        with pytest.raises(KeyNotFound):
            await topic.read_by_key("k")
        if storage_type != "EngineMemory":
            statistics = store.local.pool_statistics()
            assert statistics.turn_count < statistics.request_count
    with pytest.raises(Closed):
        await topic.append(b"late")


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with firnmq.open(tmp_path) as store:
        for storage_type in TYPES:
            topic = store.create_topic(
                storage_type, shards=3, options={"storage.type": storage_type}
            )
            topic.append([NewRecord(value=b"v", key=b"%d" % number) for number in range(30)])
            topic.commit("g", {0: 1, 2: 3})
    with firnmq.open(tmp_path) as store:
        assert [topic.name for topic in store.topics()] == sorted(TYPES)
        for storage_type in TYPES:
            topic = store.topic(storage_type)
            count = sum(len(topic.read(shard=shard)) for shard in range(3))
            assert count == (0 if storage_type == "EngineMemory" else 30)
            assert topic.committed("g") == {0: 1, 2: 3}
            store.delete_topic(storage_type)
    with firnmq.open(tmp_path) as store:
        assert store.topics() == []
        assert list((tmp_path / "segments").iterdir()) == []


def test_mistakes_get_typed_errors(tmp_path: Path) -> None:
    with firnmq.open(tmp_path) as store:
        topic = store.create_topic("t")
        with pytest.raises(AlreadyExists):
            store.create_topic("t")
        with pytest.raises(TopicNotFound):
            store.topic("nobody")
        with pytest.raises(TopicNotFound):
            store.delete_topic("nobody")
        with pytest.raises(InvalidArgument):
            store.create_topic("u", options={"segment.size": 5})
        with pytest.raises(InvalidArgument):
            topic.append([5])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument):
            topic.append([])
        with pytest.raises(ShardNotFound):
            topic.read(shard=1)
        store.delete_topic("t")
        with pytest.raises(TopicNotFound):
            topic.append(b"v")
        assert store.topics() == []


async def test_the_synchronous_store_inside_a_running_loop(tmp_path: Path) -> None:
    """It blocks the loop while it works, as any synchronous call does, and it works."""
    with firnmq.open(tmp_path) as store:
        topic = store.create_topic("t")
        topic.append(b"v")
        assert len(topic.read()) == 1


def test_threads_share_a_store(tmp_path: Path) -> None:
    with firnmq.open(tmp_path) as store:
        topic = store.create_topic("t", shards=4, options={"durability": "os"})

        def work(worker: int) -> None:
            for number in range(50):
                (written,) = topic.append(NewRecord(value=b"v", key=b"%d-%d" % (worker, number)))
                found = topic.read_by_key(b"%d-%d" % (worker, number))
                assert found.offset == written.base_offset

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(topic.status(shard).end_offset for shard in range(4)) == 300


@pytest.mark.parametrize("storage_type", ["EngineRocksDB", "EngineSegment"])
def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path, storage_type: str) -> None:
    """1. a process appends, 2. we are kept out, 3. it is killed, 4. all it was told is there."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), storage_type],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(200)]
    with pytest.raises(DirectoryInUse) as caught:
        firnmq.open(tmp_path)
    assert caught.value.holder == f"process {writer.pid}"
    os.kill(writer.pid, signal.SIGKILL)
    rest, _ = writer.communicate()
    lines = rest.splitlines(keepends=True)
    acknowledged += [int(line) for line in lines if line.endswith("\n")]
    with firnmq.open(tmp_path) as store:
        topic = store.topic("t")
        records = list(topic.records())
        assert [record.offset for record in records] == list(range(len(records)))
        assert [record.value for record in records] == [b"%d" % n for n in range(len(records))]
        assert len(records) >= len(acknowledged) == acknowledged[-1] + 1
        assert topic.append(b"more")[0].base_offset == len(records)


def test_a_topic_that_may_exist_already(tmp_path: Path) -> None:
    with firnmq.open(tmp_path) as store:
        first = store.create_topic("orders", shards=2, exist_ok=True)
        first.append(b"one", shard=1)
        again = store.create_topic("orders", options={"index.tag": False}, exist_ok=True)
        assert again.topic == first.topic
        assert [record.value for record in again.read(0, shard=1)] == [b"one"]
        with pytest.raises(AlreadyExists):
            store.create_topic("orders")


def test_the_package_has_a_version() -> None:
    assert firnmq.__version__.count(".") >= 1
    assert "__version__" in dir(firnmq)
