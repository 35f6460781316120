"""What an event loop prepares by itself of batches for topics with indexes."""

from __future__ import annotations

from firnmq import NewRecord
from firnmq.config import TopicConfig
from firnmq.engines.shardlog.append import PreparedBatch, prepare_batch, prepare_inline
from firnmq.engines.shardlog.rules import BatchRules
from firnmq.record import encode

INDEXED = BatchRules(TopicConfig())
STAMPED = BatchRules(TopicConfig.from_options({"message.timestamp.type": "LogAppendTime"}))


def batch_of(count: int, value_bytes: int, tags: int = 1) -> bytearray:
    """Records with a key and tags of their own, and a base offset of the client's."""
    names = tuple(("tag", b"%07d" % number) for number in range(count * tags))
    records = [
        NewRecord(
            value=b"v" * value_bytes,
            key=b"key-%06d" % number,
            headers=names[number * tags : (number + 1) * tags],
        )
        for number in range(count)
    ]
    batch = encode(records, now_ms=1)
    batch[0:8] = (77).to_bytes(8, "big")
    return batch


def parts(prepared: PreparedBatch) -> tuple[object, ...]:
    header = prepared.header._replace(base_offset=0)  # Given when it is appended.
    tags = None if prepared.terms is None else prepared.terms.tags
    keys = None if prepared.terms is None else keys_of(prepared)
    return bytes(prepared.data), header, keys, tags, prepared.first_expiry_ms


def keys_of(prepared: PreparedBatch) -> dict[bytes, int]:
    assert prepared.terms is not None
    return dict(prepared.terms.keys.items())


def test_a_megabyte_of_large_records_is_prepared_inline() -> None:
    batch = batch_of(900, 1024)
    prepared = prepare_inline(bytearray(batch), INDEXED, 5)
    assert prepared is not None
    assert prepared.terms is not None
    assert keys_of(prepared)[b"key-000899"] == 899
    assert prepared.terms.tags[b"0000007"] == [7]
    assert parts(prepared) == parts(prepare_batch(bytearray(batch), INDEXED, 5))


def test_many_small_records_are_left_to_a_thread() -> None:
    assert prepare_inline(batch_of(5_000, 60), INDEXED, 5) is None


def test_a_batch_with_many_tags_is_left_to_a_thread_which_finds_it_as_it_was() -> None:
    for rules in (INDEXED, STAMPED):
        batch = batch_of(1_500, 200, tags=10)
        tried = bytearray(batch)
        assert prepare_inline(tried, rules, 5) is None
        prepared = prepare_batch(tried, rules, 6)
        assert prepared.terms is not None
        assert len(prepared.terms.tags) == 15_000
        assert parts(prepared) == parts(prepare_batch(bytearray(batch), rules, 6))


def test_a_small_batch_with_many_tags_is_prepared_inline() -> None:
    assert prepare_inline(batch_of(20, 10, tags=300), INDEXED, 5) is not None


def test_offsets_of_terms_count_from_the_batch_whatever_its_own_base_offset() -> None:
    batch = batch_of(600, 600)
    batch[0:8] = (2**63 - 1).to_bytes(8, "big")
    for rules in (INDEXED, STAMPED):
        prepared = prepare_inline(bytearray(batch), rules, 5)
        assert prepared is not None
        assert prepared.terms is not None
        assert keys_of(prepared)[b"key-000000"] == 0
        assert bytes(prepared.data[0:8]) == bytes(8)
