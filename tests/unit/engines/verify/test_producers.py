"""Verification compares what is kept of producers and transactions with the log."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from firnmq.disk import Family
from firnmq.engines.verify import producers
from firnmq.engines.verify.findings import Finding, FindingKind
from firnmq.errors import Corruption
from firnmq.index.layout import (
    aborted_key,
    aborted_range,
    lost_key,
    producer_key,
    producer_range,
)
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard
from tests.unit.engines.transactional import TransactionalProducer

DURABLE = ["EngineSegment", "EngineRocksDB"]
PLAIN, OPEN, ENDED = 1, 2, 3


@pytest.fixture(params=DURABLE)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


def filled(lab: Lab) -> Shard:
    """Three producers over several segments: a plain one, one in a transaction, one with ends.

    Offsets: 0, 1 plain; 2, 3 of an aborted transaction, 4 its marker; 5 of one that is committed
    by 6; 7 of one that is open; 8 of one that is aborted by 9; 10 plain.
    """
    shard = lab.shard()
    plain, opened, ended = (TransactionalProducer(number) for number in (PLAIN, OPEN, ENDED))
    write_plain(shard, plain)
    write_plain(shard, plain)
    ended.write(shard, b"a")
    shard.roll()
    ended.write(shard, b"b")
    ended.abort(shard)
    ended.write(shard, b"c")
    ended.commit(shard)
    shard.roll()
    opened.write(shard, b"open")
    ended.write(shard, b"d")
    ended.abort(shard)
    write_plain(shard, plain)
    assert shard.end == 11
    return shard


def write_plain(shard: Shard, producer: TransactionalProducer) -> None:
    shard.append_raw(producer.batch(shard, NewRecord(value=b"p"), transactional=False))


def findings(shard: Shard) -> tuple[Finding, ...]:
    return shard.lab.store.verifier.verify(shard.name).findings


def uid(shard: Shard) -> int:
    return shard.status.spec.uid


def change(shard: Shard, key: bytes, edit: Callable[[bytes], bytes | None]) -> None:
    shard.lab.engine.housekeep()  # Stores what is kept of producers.
    kv = shard.lab.store.kv
    stored = kv.get(Family.INDEX, key)
    assert stored is not None
    after = edit(stored)
    with kv.batch() as batch:
        if after is None:
            batch.delete(Family.INDEX, key)
        else:
            batch.put(Family.INDEX, key, after)


def at(position: int, layout: str, value: int) -> Callable[[bytes], bytes]:
    def edit(stored: bytes) -> bytes:
        changed = bytearray(stored)
        struct.pack_into(layout, changed, position, value)
        return bytes(changed)

    return edit


def test_nothing_is_found_where_nothing_is_wrong(lab: Lab) -> None:
    shard = filled(lab)
    assert findings(shard) == ()
    lab.reopen()
    assert findings(shard) == ()
    lab.crash()
    assert findings(shard) == ()


def test_nothing_is_found_after_retention_truncation_and_forgetting(lab: Lab) -> None:
    shard = filled(lab)
    for start in (1, 3, 5, 7):
        shard.delete_before(start)
        assert findings(shard) == (), start
    shard.truncate(9)
    assert findings(shard) == ()
    shard.truncate(7)
    assert findings(shard) == ()
    lab.clock.advance(30 * 24 * 3600 * 1000)
    lab.engine.housekeep()
    assert lab.store.kv.items(Family.INDEX, *producer_range(uid(shard))) == []
    assert findings(shard) == ()
    write_plain(shard, TransactionalProducer(PLAIN))
    assert findings(shard) == ()
    lab.reopen()
    assert findings(shard) == ()


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_found_whatever_producers_do(lab: Lab, seed: int) -> None:
    """Random batches, ends, fences, rolls, deletions, restarts and silences."""
    chance = Random(seed)
    shard = lab.shard()
    producers = [TransactionalProducer(number) for number in range(1, 5)]
    open_ids: set[int] = set()
    for _ in range(120):
        index = chance.randrange(len(producers))
        producer = producers[index]
        is_open = producer.producer_id in open_ids
        what = chance.choices(
            ["write", "plain", "end", "fence", "roll", "start", "reopen", "crash", "silence"],
            [20, 10, 12, 3, 4, 4, 1, 1, 2],
        )[0]
        if what == "write":
            producer.write(shard, *(b"v",) * chance.randint(1, 4))
            open_ids.add(producer.producer_id)
        elif what == "plain" and not is_open:
            write_plain(shard, producer)
        elif what == "end":
            (producer.commit if chance.random() < 0.5 else producer.abort)(shard)
            open_ids.discard(producer.producer_id)
        elif what == "fence":  # A newer epoch, whose first act is to end what the older began.
            newer = TransactionalProducer(producer.producer_id, producer.epoch + 1)
            producers[index] = newer
            newer.abort(shard)
            open_ids.discard(newer.producer_id)
        elif what == "roll":
            shard.roll()
        elif what == "start":
            shard.delete_before(chance.randint(shard.start, shard.end))
            lab.engine.housekeep()
        elif what in ("reopen", "crash"):
            getattr(lab, what)()
        elif what == "silence":
            lab.clock.advance(chance.choice((3600, 48 * 3600)) * 1000)
            lab.engine.housekeep()
        assert findings(shard) == (), what


DAMAGE = {
    "epoch": (PLAIN, at(0, ">h", -2), "epoch -2"),
    "higher epoch": (PLAIN, at(0, ">h", 4), "epoch 4"),
    "transaction that is not": (PLAIN, at(2, ">q", 1), "since offset 1 is kept as open"),
    "transaction elsewhere": (OPEN, at(2, ">q", 8), "since offset 8 is kept as open"),
    "no transaction": (OPEN, at(2, ">q", -1), "no transaction is kept as open"),
    "first sequence": (PLAIN, at(19, ">i", 5), "5–0 at offsets 0–0"),
    "last sequence": (PLAIN, at(19 + 4, ">i", 5), "0–5 at offsets 0–0"),
    "base offset": (ENDED, at(19 + 8, ">q", 1), "at offsets 1–1"),
    "length": (ENDED, at(19 + 16, ">i", 3), "at offsets 2–5"),
    "order": (PLAIN, at(19 + 8, ">q", 9), "in the order [9, 1, 10]"),
    "count": (PLAIN, at(18, ">B", 2), "no producer's entry with 2 batches"),
    "too many": (PLAIN, at(18, ">B", 200), "no producer's entry with 200 batches"),
    "cut": (PLAIN, lambda stored: stored[:7], "7 bytes are no producer's entry"),
    "oldest batches only": (
        PLAIN,
        lambda stored: stored[:18] + b"\x02" + stored[19:59],
        "the log's last are",
    ),
    "no batches": (PLAIN, lambda stored: stored[:18] + b"\x00", "at offset 10, is not kept"),
    "gone": (OPEN, lambda stored: None, "is not kept, and its transaction since offset 7"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_producer_is_found(lab: Lab, damage: str) -> None:
    producer_id, edit, message = DAMAGE[damage]
    shard = filled(lab)
    change(shard, producer_key(uid(shard), producer_id), edit)
    found = findings(shard)
    assert {each.kind for each in found} == {FindingKind.PRODUCER}
    assert any(message in each.message for each in found), found
    assert {each.where for each in found} == {f"producers of {shard.name}"}


ABORT_DAMAGE = {
    "producer": (4, at(0, ">q", 9), "producer_id 9 is kept, by the log it is 3"),
    "first offset": (4, at(8, ">q", 3), "first_offset 3 is kept, by the log it is 2"),
    "stable offset": (9, at(16, ">q", 10), "stable_offset 10 is kept, by the log it is 7"),
    "cut": (4, lambda stored: stored[:-1], "23 bytes are no aborted transaction's entry"),
    "gone": (9, lambda stored: None, "producer 3 since offset 8 is not kept"),
}


@pytest.mark.parametrize("damage", ABORT_DAMAGE)
def test_a_damaged_abort_is_found(lab: Lab, damage: str) -> None:
    offset, edit, message = ABORT_DAMAGE[damage]
    shard = filled(lab)
    change(shard, aborted_key(uid(shard), offset), edit)
    found = findings(shard)
    assert any(message in each.message for each in found), found
    assert {each.kind for each in found} <= {FindingKind.TRANSACTION, FindingKind.PRODUCER}
    assert FindingKind.TRANSACTION in {each.kind for each in found}


@pytest.mark.parametrize("offset", [3, 6, 30])
def test_an_abort_that_never_was_is_found(lab: Lab, offset: int) -> None:
    shard = filled(lab)
    with lab.store.kv.batch() as batch:
        batch.put(Family.INDEX, aborted_key(uid(shard), offset), struct.pack(">qqq", 3, 2, 4))
    (found,) = findings(shard)
    assert found.kind is FindingKind.TRANSACTION
    assert f"marker at offset {offset}: is kept, the log has none there" in found.message


def test_a_key_that_names_nobody_is_found(lab: Lab) -> None:
    shard = filled(lab)
    with lab.store.kv.batch() as batch:
        batch.put(Family.INDEX, producer_key(uid(shard), 5)[:-1], b"")
    (found,) = findings(shard)
    assert found.kind is FindingKind.PRODUCER
    assert "no producer and no marker has such a key" in found.message


def test_a_wrong_description_of_what_is_open_is_found(lab: Lab) -> None:
    shard = filled(lab)
    first, second, *_ = lab.store.state.chain(uid(shard))
    assert [each[0] for each in first.transactions] == [ENDED]
    forged = dataclasses.replace(first, epoch=first.epoch + 1, transactions=())
    lab.store.state.replace_sealed(uid(shard), forged, [])
    found = [each for each in findings(shard) if each.kind is FindingKind.TRANSACTION]
    assert "one since offset 2 is open, the description says none" in found[0].message
    assert found[0].segment_seq == first.seq
    assert second.transactions == ()


def test_a_damaged_producer_refuses_to_open(lab: Lab) -> None:
    shard = filled(lab)
    change(shard, producer_key(uid(shard), PLAIN), lambda stored: stored[:7])
    lab.reopen()
    with pytest.raises(Corruption, match=f"producers of {shard.name}"):
        shard.append_values(b"v")


def test_spilled_memory_shards_are_checked_in_part(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data", "EngineMemory")
    shard = lab.shard({"memory.overflow": "spill"})
    producer = TransactionalProducer(1)
    producer.write(shard, b"a")
    producer.abort(shard)
    shard.roll()
    producer.write(shard, b"b")
    lab.store.housekeep()
    assert findings(shard) == ()
    lab.reopen()
    assert findings(shard) == ()
    lab.close()


def test_a_transaction_that_is_wrongly_kept_as_cut_off_is_found(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data", "EngineMemory")
    shard = lab.shard({"memory.overflow": "spill"})
    TransactionalProducer(1).write(shard, b"a")
    shard.roll()
    lab.store.housekeep()
    lab.reopen()
    assert findings(shard) == ()
    rows = lab.store.kv.items(Family.INDEX, *aborted_range(uid(shard)))
    assert [key for key, _ in rows] == [lost_key(uid(shard), 0, 1)]
    with lab.store.kv.batch() as batch:
        batch.put(Family.INDEX, lost_key(uid(shard), 0, 2), rows[0][1].replace(b"\1", b"\2", 1))
        batch.put(Family.INDEX, lost_key(uid(shard), 5, 1), rows[0][1])
    texts = [each.message for each in lab.store.verifier.verify(shard.name).findings]
    assert len(texts) == 2
    assert "producer 2: a transaction since offset 0 is kept as lost" in texts[0]
    assert "lost at offset 5, where no segment ends" in texts[1]
    lab.close()


def test_many_entries_are_read_page_by_page(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "_ENTRIES_PER_READ", 3)
    shard = lab.shard()
    for producer_id in range(20):
        write_plain(shard, TransactionalProducer(producer_id))
    assert findings(shard) == ()
    for producer_id in range(20):
        change(shard, producer_key(uid(shard), producer_id), at(19 + 8, ">q", 500))
    assert len(findings(shard)) == 20
