"""A data directory as this version wrote it once is opened and read, now and by later versions.

The golden file has the rows of both databases and the bytes of the segment files, as docs/formats
describes them (segment-file, index, state, meta), and not the databases' own files: what RocksDB
and SQLite make of the rows is theirs to change.
"""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import firnmq
from firnmq.adapter import OffsetRows
from firnmq.brokers.kafka.offsets import KvGroupStore
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.transactions.snapshot import TransactionPartition, TransactionState
from firnmq.brokers.kafka.transactions.store import KvTransactionStore
from firnmq.brokers.security.users import UserStore
from firnmq.disk import Family, KeyValueStore
from firnmq.record.deletion import Deletion

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN: dict[str, Any] = json.loads((FOLDER / "data_directory_v1.json").read_text("utf-8"))
WITH_DELETIONS: dict[str, Any] = json.loads(
    (FOLDER / "data_directory_deletions_v1.json").read_text("utf-8")
)
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return put_together(tmp_path / "data", GOLDEN)


def put_together(path: Path, golden: dict[str, Any]) -> Path:
    """The directory, put together from its rows and files."""
    path.mkdir(mode=0o700)
    database = sqlite3.connect(path / "meta.db")
    database.execute("PRAGMA journal_mode=WAL")
    database.executescript("\n".join(golden["meta.db"]))
    database.close()
    kv = KeyValueStore(path / "db")
    with kv.batch() as batch:
        for family in Family:
            for key, value in golden["db"].get(family.name.lower(), []):
                batch.put(family, bytes.fromhex(key), bytes.fromhex(value))
    kv.sync()
    kv.close()
    for name, content in golden["files"].items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes.fromhex(content))
    return path


@pytest.mark.parametrize("name", ["files", "rows"])
def test_records_indexes_and_offsets_are_read_as_they_were_meant(
    directory: Path, name: str
) -> None:
    with firnmq.open(directory) as store:
        topic = store.topic(name)
        records = list(topic.records(0))
        assert [record.offset for record in records] == list(range(13))
        for number, record in enumerate(records[:12]):
            assert record.value == b"value-%d" % number
            assert record.key == b"key-%d" % (number % 5)
            assert record.timestamp_ms == FIRST_MS + number
            assert record.headers[0] == ("h", b"x")
        assert topic.read_by_key("key-1").offset == 11
        assert topic.read_by_key("key-4").offset == 9
        assert topic.read_by_key(b"L" * 200).value == b"long"
        assert [record.offset for record in topic.read_by_tag("odd")] == [1, 3, 5, 7, 9, 11]
        assert topic.offset_at(FIRST_MS + 10) == 10
        assert topic.committed("readers") == {0: 7}
        assert topic.append(b"more")[0].base_offset == 13
    with firnmq.open(directory) as store:
        assert len(list(store.topic(name).records(0))) == 14


@pytest.mark.parametrize("name", ["files", "rows", "spilled"])
def test_deletions_of_a_version_without_entries_get_them_once(tmp_path: Path, name: str) -> None:
    """1. An earlier version deleted by offset and by key, in rows alone. 2. The records stay
    deleted: entries say so, once, and the rows are gone. 3. A crash between the two appends
    nothing twice."""
    path = put_together(tmp_path / "data", WITH_DELETIONS)
    is_memory = name == "spilled"  # Restarted, it has lost what was not spilled.
    live = [2, 4, 6, 7] if is_memory else [2, 4, 6, 7, 8, 9, 11]
    end = 8 if is_memory else 12
    for _ in range(2):
        with firnmq.open(path) as store:
            topic = store.topic(name)
            shard, rows = topic.topic.shard_name(0), store.local.state.deletions
            (uid,) = (spec.uid for spec in store.local.state.shards() if spec.name == shard)
            before = rows.unlogged(uid)
            assert [record.offset for record in topic.records(1)] == live
            status = store.local.engines[topic.topic.config.storage_type].status(shard)
            assert (status.start_offset, status.end_offset) == (1, end + 2)
            assert rows.all_of(uid) == ({3} if is_memory else {3, 10}, {b"key-1": 8})
            if not is_memory:
                assert rows.unlogged(uid) == Deletion()
            assert store.local.verifier.verify(shard).findings == ()
            rows.add_unlogged(uid, before)


def test_the_state_of_kafka_clients_is_read_as_it_was_meant(directory: Path) -> None:
    kv = KeyValueStore(directory / "db")
    try:
        rows = OffsetRows(kv)
        groups = asyncio.run(KvGroupStore(rows).load_all())
        transactions = asyncio.run(KvTransactionStore(rows).load_all())
        assert ProducerIds(kv).new() == 1000
        assert UserStore(kv).get("ada") is not None
        assert UserStore(kv).get("ada", "sha512") is not None
    finally:
        kv.close()
    group = groups["workers"]
    assert (group.generation, group.protocol_type, group.protocol_name, group.leader) == (
        *(3, "consumer", "range", "m-1"),
    )
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.assignment) == ("m-1", "i-1", b"\x00\x02")
    assert (member.protocols[0].name, member.protocols[0].metadata) == ("range", b"\x00\x01")
    transaction = transactions["tx-1"]
    assert (transaction.producer_id, transaction.epoch) == (7, 2)
    assert transaction.state is TransactionState.ONGOING
    assert transaction.partitions == (TransactionPartition("files", "files_0"),)
    assert transaction.groups == ("readers",)
