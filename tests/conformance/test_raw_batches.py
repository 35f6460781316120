"""A client's own batches: stored as they come, or refused without harm to anyone else."""

import asyncio
from collections.abc import Callable

import pytest

from firnmq.engines import Appended
from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record import Compression, NewRecord, decode, encode, parse_header
from firnmq.record.batch import HEADER_BYTES
from tests.conformance.lab import Lab, Shard, numbered
from tests.unit.record.batches import made, record, with_crc

NOW = 1_700_000_000_000


def batch_of(*records: NewRecord, base_offset: int = 0, **options: object) -> bytes:
    return bytes(encode(records, now_ms=NOW, base_offset=base_offset, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", list(Compression))
def test_client_batches_of_every_codec_are_read_back(
    shard: Shard, compression: Compression
) -> None:
    records = numbered(200, key=b"k", tags=("t",))
    appended = shard.append_raw(batch_of(*records, compression=compression))
    assert appended == Appended(base_offset=0, next_offset=200)
    assert shard.values() == [each.value for each in records]
    assert shard.by_key(b"k").offset == 199
    assert shard.tagged("t") == list(range(200))
    (raw,) = shard.engine.read_batches(shard.name, 0, max_bytes=2**31).batches
    assert parse_header(raw).compression is compression


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_topics_compress_what_they_batch(lab: Lab, compression: str) -> None:
    shard = lab.shard({"compression.type": compression})
    shard.append_values(b"single")
    shard.append(*numbered(100, tags=("t",)))
    assert len(shard.values()) == 101
    assert shard.tagged("t") == list(range(1, 101))
    for raw in shard.engine.read_batches(shard.name, 0, max_bytes=1).batches:
        assert parse_header(raw).compression.name.lower() == compression
    shard.delete(5)
    assert shard.raw_offsets() == [each for each in range(101) if each != 5]


def test_bytes_after_the_first_sixteen_stay_as_they_came(shard: Shard) -> None:
    shard.append_values(b"before")
    batch = batch_of(*numbered(10), base_offset=12345, producer_id=7, producer_epoch=1)
    assert shard.append_raw(batch).base_offset == 1
    (raw,) = shard.engine.read_batches(shard.name, 1, max_bytes=1).batches
    assert bytes(raw)[16:] == batch[16:]
    assert parse_header(raw).base_offset == 1


def test_several_batches_are_one_request(shard: Shard) -> None:
    batches = [batch_of(*numbered(size)) for size in (3, 1, 20)]
    assert shard.append_raw(*batches) == Appended(base_offset=0, next_offset=24)
    assert shard.offsets() == list(range(24))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(shard: Shard, wrap: Callable[[bytes], bytes]) -> None:
    shard.append_raw(wrap(batch_of(*numbered(2))))
    shard.append_raw(wrap(batch_of(*numbered(2))))
    assert shard.offsets() == [0, 1, 2, 3]


GOOD = made(record(0), record(1))
BAD = {
    "nothing": b"",
    "less than a header": GOOD[: HEADER_BYTES - 1],
    "truncated": GOOD[:-1],
    "more than a batch": GOOD + b"\0",
    "two batches in one buffer": GOOD + GOOD,
    "bad crc": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "old magic": made(record(0), magic=1),
    "unknown codec": made(record(0), attributes=5),
    "not what the codec says": made(record(0), attributes=4),
    "no records": made(record_count=0),
    "negative count": made(record(0), record_count=-1),
    "more records than bytes": made(record(0), record_count=1_000_000),
    "fewer records counted": made(record(0), record(1), record_count=1),
    "negative delta": made(record(0), last_offset_delta=-1),
    "gaps in offsets": made(record(0), record(2), last_offset_delta=2),
    "negative length": made(record(0), batch_length=-1),
    "huge length": made(record(0), batch_length=2**31 - 1),
    "record beyond the batch": with_crc(made(b"\xfe\x01" + record(0)[1:])),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_batch_is_refused_and_leaves_no_trace(lab: Lab, bad: bytes) -> None:
    shard = lab.shard()
    shard.append_raw(GOOD)
    for batches in ([bad], [GOOD, bad], [bad, GOOD]):
        with pytest.raises(InvalidRecord):
            shard.append_raw(*batches)
    assert shard.end == 2
    shard.append_raw(GOOD)
    assert shard.offsets() == [0, 1, 2, 3]
    assert shard.status.failure is None


def test_batches_and_records_above_the_limits_are_refused(lab: Lab) -> None:
    shard = lab.shard({"max.batch.bytes": 4096, "max.record.bytes": 1000})
    for bad in (batch_of(*numbered(100, size=100)), batch_of(*numbered(1, size=1100))):
        with pytest.raises(LimitExceeded):
            shard.append_raw(bad)
    packed = batch_of(*numbered(1, size=1100), compression=Compression.ZSTD)
    with pytest.raises(LimitExceeded):
        shard.append_raw(packed)
    assert shard.end == 0


async def test_one_clients_bad_batch_does_not_touch_another_client(lab: Lab) -> None:
    """All of these are under way at once, so that they share turns."""
    shard = lab.shard()

    async def client(number: int) -> object:
        if number % 3 == 0:
            bad = list(BAD.values())[number % len(BAD)]
            return await shard.engine.append_batches(shard.name, [bad])
        if number % 3 == 1:
            batch = batch_of(NewRecord(value=b"%d" % number))
            return await shard.engine.append_batches(shard.name, [batch])
        return await shard.engine.append(shard.name, [NewRecord(value=b"%d" % number)])

    answers = await asyncio.gather(*map(client, range(120)), return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 3 == 0:
            assert isinstance(answer, InvalidRecord)
        else:
            assert isinstance(answer, Appended)
            assert (
                shard.read(answer.base_offset, max_records=1).records()[0].value == b"%d" % number
            )
    assert shard.offsets() == list(range(80))


def test_raw_pages_decode_to_what_reads_show(small_segments: Shard) -> None:
    for number in range(20):
        small_segments.append(*numbered(1 + number % 5, key=b"k", tags=("t",)))
    page = small_segments.engine.read_batches(small_segments.name, 0, max_bytes=2**31)
    assert decode(page.batches).records() == small_segments.records()
