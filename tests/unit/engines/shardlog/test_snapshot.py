"""Snapshots: their bytes, what is refused, and what opening a log makes of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.disk import Family, run_blocking
from firnmq.engines import Appended
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.engines.shardlog.producers import Producer, ProducerBatch
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.errors import Corruption, FirnError
from firnmq.index.layout import PREFIX, shard_range
from firnmq.record import NewRecord, crc32c, encode
from firnmq.record.deletion import Deletion
from tests.conformance.lab import Lab, Shard

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "snapshot_v1.json").read_text("utf-8"))
UID = 3


def golden_snapshot() -> Snapshot:
    producer = Producer(3, 1_700_000_000_000)
    producer.transaction_start = 40
    producer.batches.append(ProducerBatch(0, 4, 10, 14))
    producer.batches.append(ProducerBatch(5, 5, 40, 40))
    return Snapshot(
        130,
        ((7, producer.pack()), (9, Producer(0, 5).pack())),
        (AbortedTransaction(7, 20, 30, 31), AbortedTransaction(8, 110, 120, 40)),
        ((50, Deletion((3, 5), ())), (60, Deletion((), ((b"key", 55),)))),
    )


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


def test_the_golden_bytes() -> None:
    packed = bytes.fromhex(GOLDEN["snapshot"])
    assert golden_snapshot().pack(UID) == packed
    assert Snapshot.unpack(packed, UID, 130) == golden_snapshot()


def test_every_flipped_bit_and_every_truncation_is_found() -> None:
    packed = golden_snapshot().pack(UID)
    for at in range(len(packed)):
        with pytest.raises(Corruption):
            Snapshot.unpack(packed[:at], UID, 130)
        for bit in range(8):
            spoilt = bytearray(packed)
            spoilt[at] ^= 1 << bit
            with pytest.raises(Corruption):
                Snapshot.unpack(spoilt, UID, 130)


@pytest.mark.parametrize("at", range(32 + 60))
@pytest.mark.parametrize("value", [0, 1, 0x7F, 0xFF])
def test_content_that_was_never_written_is_refused_even_with_a_right_crc(
    at: int, value: int
) -> None:
    spoilt = bytearray(golden_snapshot().pack(UID)[:-4])
    spoilt[at] = value
    spoilt += crc32c(spoilt).to_bytes(4, "big")
    try:
        found = Snapshot.unpack(spoilt, UID, 130)
    except Corruption:
        return
    assert found.pack(UID) == spoilt


def test_counts_are_compared_with_the_length_before_anything_is_made() -> None:
    content = bytearray(Snapshot(9).pack(UID)[:-4])
    content[20:24] = b"\xff" * 4
    content += crc32c(content).to_bytes(4, "big")
    with pytest.raises(Corruption, match="too few"):
        Snapshot.unpack(content, UID, 9)


def test_another_shard_s_snapshot_and_another_offset_s_are_refused() -> None:
    packed = golden_snapshot().pack(UID)
    for uid, end_offset in ((UID + 1, 130), (UID, 131)):
        with pytest.raises(Corruption, match="is the snapshot of"):
            Snapshot.unpack(packed, uid, end_offset)


def test_what_is_below_the_start_is_left_out() -> None:
    left = golden_snapshot().from_offset(31)
    assert left.producers == golden_snapshot().producers
    assert [each.last_offset for each in left.aborted] == [120]
    assert [at for at, _ in left.deletions] == [60]


# With an engine. ----------------------------------------------------------------------------------


def batch_of(producer: int, sequence: int = 0) -> bytes:
    fields = {"producer_id": producer, "producer_epoch": 2, "base_sequence": sequence}
    return bytes(encode([NewRecord(value=b"v", key=b"k")], now_ms=5, **fields))


def send(shard: Shard, producer: int, sequence: int = 0) -> Appended:
    async def append() -> Appended:
        return await (await shard.engine.submit(shard.name, batch_of(producer, sequence)))

    return run_blocking(append())


def snapshots(lab: Lab, shard: Shard) -> list[str]:
    return sorted(path.name for path in (lab.path / "segments" / shard.name).glob("*.snap"))


def lose_rows(lab: Lab, shard: Shard) -> None:
    """Removes what is kept beside the log of producers, transactions and deletions, and the index
    of the active segment with its checkpoint."""
    uid = lab.engine.list_shard()[0].uid
    _, end = shard_range(uid)
    with lab.store.kv.batch() as batch:
        batch.delete_range(Family.INDEX, PREFIX.pack(uid, 1, 0), end)


def test_all_producers_and_deletions_come_back_from_a_snapshot(lab: Lab) -> None:
    """More producers than the metadata ever had. What is kept beside the log is lost; afterwards
    each of them is known, and what was deleted stays deleted."""
    shard = lab.shard()
    count = 2_500
    for producer in range(count):
        assert send(shard, producer).base_offset == producer
    shard.delete(5)
    shard.roll()
    end = shard.end
    assert snapshots(lab, shard) == [f"{end:020d}.snap"]
    assert send(shard, count).base_offset == end
    lose_rows(lab, shard)
    lab.crash()
    assert 5 not in shard.offsets()
    for producer in (0, 1, count // 2, count - 1, count):
        assert send(shard, producer).base_offset == (end if producer == count else producer)
    assert send(shard, 0, sequence=1).base_offset == end + 1


def test_without_producers_and_deletions_there_is_no_file(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"a")
    shard.roll()
    assert snapshots(lab, shard) == []


def test_only_the_newest_snapshot_stays(lab: Lab) -> None:
    shard = lab.shard()
    for sequence in range(3):
        send(shard, 1, sequence)
        shard.roll()
    assert snapshots(lab, shard) == [f"{3:020d}.snap"]
    shard.delete_before(3)
    lab.reopen()
    assert shard.end == 3
    assert snapshots(lab, shard) == [f"{3:020d}.snap"]
    lab.engine.delete_shard(shard.name)
    assert snapshots(lab, shard) == []


def test_opening_removes_what_an_interrupted_roll_has_left(lab: Lab) -> None:
    shard = lab.shard()
    send(shard, 1)
    shard.roll()
    directory = lab.path / "segments" / shard.name
    (directory / f"{77:020d}.snap").write_bytes(b"torn")
    lab.reopen()
    assert shard.end == 1
    assert snapshots(lab, shard) == [f"{1:020d}.snap"]


def test_a_damaged_snapshot_is_reported_and_not_used(lab: Lab) -> None:
    """What is beside the index still has the producers, so nothing is lost."""
    shard = lab.shard()
    send(shard, 1)
    shard.roll()
    (path,) = (lab.path / "segments" / shard.name).glob("*.snap")
    spoilt = bytearray(path.read_bytes())
    spoilt[-1] ^= 1
    path.write_bytes(spoilt)
    findings = lab.store.verifier.verify(shard.name).findings
    assert [each.where for each in findings] == [str(path)]
    lab.reopen()
    assert send(shard, 1).base_offset == 0
    with pytest.raises(FirnError):
        send(shard, 1, sequence=9)
