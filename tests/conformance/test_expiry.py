"""Records past their own expiry are not given to anyone, least of all as raw batches."""

from __future__ import annotations

import pytest

from firnmq.errors import InvalidArgument
from firnmq.index import NEVER_MS
from firnmq.record import Compression, NewRecord, encode, parse_header
from tests.conformance.lab import EVERYTHING, Lab, Shard
from tests.conformance.stored import content, stored

EXPIRING = ("expire-at", b"1700000005000")


def batch(lab: Lab, *headers: tuple[str, bytes] | None, codec: Compression) -> bytes:
    records = [
        NewRecord(key=b"k%d" % at, value=b"v" * 20, headers=() if each is None else (each,))
        for at, each in enumerate(headers)
    ]
    return bytes(encode(records, now_ms=lab.clock.now_ms(), compression=codec))


def raw(shard: Shard) -> list[bytes]:
    page = shard.engine.read_batches(shard.name, shard.start, max_bytes=EVERYTHING)
    for _ in range(2):  # However a broker comes by them.
        assert content(stored(shard, shard.start)) == b"".join(map(bytes, page.batches))
    return [bytes(piece) for piece in page.batches]


@pytest.mark.parametrize("size", [1, 300], ids=["small", "large"])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_batches_are_given_as_they_are_until_a_record_expires(
    own_lab: Lab, codec: Compression, indexed: bool, size: int
) -> None:
    shard = own_lab.shard({"index.key": indexed, "index.tag": indexed, "memory.overflow": "spill"})
    given = batch(own_lab, None, EXPIRING, *[None] * size, codec=codec)
    shard.append_raw(given)
    assert raw(shard)[0][61:] == given[61:]
    own_lab.clock.advance(4999)
    assert raw(shard)[0][61:] == given[61:]
    own_lab.clock.advance(1)
    live = [0, *range(2, 2 + size)]
    assert shard.raw_offsets() == shard.offsets() == live
    header = parse_header(raw(shard)[0])
    assert header._replace(batch_length=0, crc=0) == parse_header(given)._replace(
        batch_length=0, crc=0, record_count=1 + size
    )
    shard.roll()
    assert shard.raw_offsets() == live
    own_lab.engine.housekeep()
    for restart in (own_lab.reopen, own_lab.crash):
        restart()
        assert shard.raw_offsets() == shard.offsets() == live


def test_the_active_segment_is_known_after_a_restart(own_lab: Lab) -> None:
    if own_lab.storage_type == "EngineMemory":
        pytest.skip("memory promises nothing")
    shard = own_lab.shard()
    shard.append(NewRecord(value=b"1"))
    shard.append(NewRecord(value=b"2", expire_at_ms=own_lab.clock.now_ms() + 10))
    shard.append(NewRecord(value=b"3", headers=(EXPIRING,)))
    for restart in (own_lab.reopen, own_lab.crash):
        restart()
        log = own_lab.engine.log(shard.name)  # type: ignore[attr-defined]
        assert log.view.active_expiry_ms == own_lab.clock.now_ms() + 10
    own_lab.clock.advance(10)
    assert shard.raw_offsets() == [0, 2]


def test_what_does_not_expire_costs_no_reader_anything(lab: Lab) -> None:
    shard = lab.shard()
    shard.append(NewRecord(value=b"1 expire-at", headers=(("other", b"1"),)))
    shard.append_raw(batch(lab, None, ("expire-at", b"never"), codec=Compression.GZIP))
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    assert log.view.active_expiry_ms == NEVER_MS
    shard.roll()
    assert shard.status.segments[0].first_expiry_ms == NEVER_MS


def test_a_topic_can_do_without_expiry(lab: Lab) -> None:
    shard = lab.shard({"expire.header": "none"})
    shard.append_raw(batch(lab, ("expire-at", b"1"), codec=Compression.NONE))
    assert shard.raw_offsets() == shard.offsets() == [0]
    with pytest.raises(InvalidArgument, match=r"expire\.header"):
        shard.append(NewRecord(value=b"v", expire_at_ms=5))


def test_the_name_of_the_header_is_fixed(lab: Lab) -> None:
    shard = lab.shard()
    other = shard.status.spec.config.with_options({"expire.header": "best-before"})
    with pytest.raises(InvalidArgument, match=r"expire\.header"):
        shard.engine.reconfigure(shard.name, other)


def test_a_reader_is_taken_past_what_has_expired(lab: Lab) -> None:
    shard = lab.shard()
    for _ in range(3):
        shard.append(NewRecord(value=b"v", expire_at_ms=1))
    (empty,) = map(parse_header, raw(shard))
    assert (empty.base_offset, empty.last_offset, empty.record_count) == (0, 2, 0)
    shard.append(NewRecord(value=b"new"))
    assert shard.raw_offsets() == [3]


def test_a_checkpoint_speaks_of_what_is_synced_only(own_lab: Lab) -> None:
    shard = own_lab.shard({"durability": "os"})
    shard.append(NewRecord(value=b"1"))
    own_lab.engine.housekeep()
    shard.append(NewRecord(value=b"2", expire_at_ms=own_lab.clock.now_ms() + 10))
    assert own_lab.store.verifier.verify(shard.name).findings == ()
    if own_lab.storage_type != "EngineMemory":
        own_lab.crash()
        own_lab.clock.advance(10)
        assert shard.raw_offsets() == [0]
        assert own_lab.store.verifier.verify(shard.name).findings == ()
