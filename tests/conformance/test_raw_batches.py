"""A client's own batches: stored as they come, or refused without harm to anyone else."""

import asyncio
from collections.abc import Callable

import pytest

from firnmq.engines import Appended
from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record import Compression, NewRecord, compress, decode, encode, parse_header
from firnmq.record.batch import HEADER_BYTES
from firnmq.testing.appending import append_batch
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
    producer = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 0}
    batch = batch_of(*numbered(10), base_offset=12345, **producer)
    assert shard.append_raw(batch).base_offset == 1
    (raw,) = shard.engine.read_batches(shard.name, 1, max_bytes=1).batches
    assert bytes(raw)[16:] == batch[16:]
    assert parse_header(raw).base_offset == 1


@pytest.mark.parametrize("options", [{}, {"index.key": False, "index.tag": False}], ids=str)
@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("wrong", [-1, 999, 5_000])
def test_a_wrong_max_timestamp_is_corrected(
    lab: Lab, compression: Compression, wrong: int, options: dict[str, object]
) -> None:
    """Some clients send a max timestamp that is not that of their newest record."""
    shard = lab.shard(options)
    records = record(0, key=b"a"), record(1, timestamp_delta=500), record(2, timestamp_delta=7)
    right, sent = (
        made(*records, max_timestamp=newest, compression=compression) for newest in (1_500, wrong)
    )
    for _ in range(2):
        shard.append_raw(sent)
    for offset in (0, 3):
        (found,) = shard.engine.read_batches(shard.name, offset, max_bytes=1).batches
        assert bytes(found)[16:] == right[16:]
    assert shard.status.max_timestamp == 1_500
    assert [each.timestamp_ms for each in shard.records()] == [1_000, 1_500, 1_007] * 2
    assert shard.at_time(1_008) == 1
    assert lab.store.verifier.verify(shard.name).findings == ()


def test_a_request_of_several_batches_is_refused(shard: Shard) -> None:
    """Only a batch is stored whole or not at all."""
    with pytest.raises(InvalidRecord):
        shard.append_raw(bytes(batch_of(*numbered(3))) + bytes(batch_of(*numbered(2))))
    assert shard.end == 0


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(shard: Shard, wrap: Callable[[bytes], bytes]) -> None:
    shard.append_raw(wrap(batch_of(*numbered(2))))
    shard.append_raw(wrap(batch_of(*numbered(2))))
    assert shard.offsets() == [0, 1, 2, 3]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_batch_has_a_limit_of_keys_and_tags(
    shard: Shard, compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small compressed batch can have very many, each of which takes memory of its own."""
    monkeypatch.setattr("firnmq.engines.shardlog.append.TERMS_MAX", 1_000)
    shard.append_raw(batch_of(*numbered(500, key=b"k", tags=("t",)), compression=compression))
    for many in (
        numbered(1_001, key=b"k"),
        numbered(501, key=b"k", tags=("t",)),
        numbered(1, tags=tuple(map(str, range(1_001)))),
    ):
        with pytest.raises(LimitExceeded, match="keys and tags, the limit is 1,000"):
            shard.append_raw(batch_of(*many, compression=compression))
    assert shard.end == 500


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
    "time of the append": made(record(0), attributes=8),
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


LIES = {
    "counts fewer": {"record_count": 1, "last_offset_delta": 0},
    "counts more": {"record_count": 3, "last_offset_delta": 2},
}
for codec in Compression:
    BAD |= {
        f"{what}, {codec.name}": made(record(0), record(1), compression=codec, **lie)
        for what, lie in LIES.items()
    }
    BAD |= {
        f"repeated delta, {codec.name}": made(record(0), record(0), compression=codec),
        f"late delta, {codec.name}": made(record(0), record(2), compression=codec),
        f"bytes after the records, {codec.name}": made(
            record(0), b"\0", record_count=1, last_offset_delta=0, compression=codec
        ),
        f"header name, {codec.name}": made(record(0, headers=[(b"\xff", b"")]), compression=codec),
        f"timestamp overflow, {codec.name}": made(
            record(0, timestamp_delta=2**63 - 1), compression=codec
        ),
    }
    if codec in (Compression.GZIP, Compression.LZ4):
        BAD[f"two frames, {codec.name}"] = made(
            bytes(compress(codec, record(0))) + bytes(compress(codec, record(1))),
            attributes=codec,
            record_count=2,
        )
    if codec:
        BAD |= {
            f"garbage, {codec.name}": made(b"not compressed " * 9, attributes=codec),
            f"cut short, {codec.name}": made(
                bytes(compress(codec, record(0) + record(1)))[:-5],
                attributes=codec,
                record_count=2,
            ),
        }
PLAIN = {"index.key": False, "index.tag": False, "expire.header": "none"}
"""With these options nothing but the check looks at records."""


@pytest.mark.parametrize("options", [{}, PLAIN], ids=["indexed", "plain"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_batch_is_refused_and_leaves_no_trace(
    lab: Lab, bad: bytes, options: dict[str, object]
) -> None:
    shard = lab.shard(options)
    shard.append_raw(GOOD)
    with pytest.raises(InvalidRecord):
        shard.append_raw(bad)
    assert shard.end == 2
    shard.append_raw(GOOD)
    assert shard.offsets() == [0, 1, 2, 3]
    assert shard.status.failure is None


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_the_check_of_compressed_records_can_be_turned_off(lab: Lab, codec: Compression) -> None:
    bad = BAD[f"garbage, {codec.name}"]
    shard = lab.shard({**PLAIN, "check.compressed": False})
    shard.append_raw(bad)
    assert shard.end == 1
    for needs_records in ({"index.key": True}, {"index.tag": True}, {"expire.header": "e"}):
        shard = lab.shard({**PLAIN, "check.compressed": False, **needs_records})
        with pytest.raises(InvalidRecord):
            shard.append_raw(bad)


@pytest.mark.parametrize("producer", [(7, 1, -1), (7, -1, 0), (7, -1, -1)])
def test_a_producer_that_does_not_count_its_batches_is_refused(
    shard: Shard, producer: tuple[int, int, int]
) -> None:
    """Such a batch would be taken for a repetition of the one before, and be lost."""
    names = ("producer_id", "producer_epoch", "base_sequence")
    fields = dict(zip(names, producer, strict=True))
    with pytest.raises(InvalidRecord, match="needs an epoch and a sequence number"):
        shard.append_raw(batch_of(*numbered(1), **fields))
    assert shard.end == 0


def test_a_refusal_names_the_records_at_fault(lab: Lab) -> None:
    shard = lab.shard({"cleanup.policy": "compact", "max.record.bytes": 1000})
    keyless = made(record(0, key=b"k"), record(1), record(2, key=b"k"), record(3))
    large = made(record(0, key=b"k"), record(1, key=b"k", value=bytes(1000)))
    delta = made(record(0, key=b"k"), record(5, key=b"k"), last_offset_delta=1)
    for batch, indexes in ((keyless, [1, 3]), (large, [1]), (delta, [1])):
        with pytest.raises(InvalidRecord) as refusal:
            shard.append_raw(batch)
        assert list(refusal.value.record_indexes) == indexes


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
            return await append_batch(shard.engine, shard.name, bad)
        if number % 3 == 1:
            batch = batch_of(NewRecord(value=b"%d" % number))
            return await append_batch(shard.engine, shard.name, batch)
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
