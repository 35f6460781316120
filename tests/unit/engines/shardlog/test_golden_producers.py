"""Producers and aborted transactions are written and read as they were once."""

import json
from pathlib import Path

from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.engines.shardlog.producers import (
    Producer,
    ProducerBatch,
    pack_aborted,
    unpack_aborted,
)

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "producers_v1.json").read_text("utf-8"))


def test_a_producer() -> None:
    packed = bytes.fromhex(GOLDEN["producer"])
    producer = Producer.unpack(packed)
    assert (producer.epoch, producer.stored_ms) == (3, 1_700_000_000_000)
    assert producer.transaction_start == 40
    assert list(producer.batches) == [ProducerBatch(0, 4, 10, 14), ProducerBatch(5, 5, 40, 40)]
    assert producer.pack() == packed


def test_an_aborted_transaction() -> None:
    packed = bytes.fromhex(GOLDEN["aborted"])
    transaction = AbortedTransaction(7, 110, 120, 121)
    assert unpack_aborted(120, packed) == transaction
    assert pack_aborted(transaction) == packed
