"""`take_plain` takes what `validate` accepts and is plain, and touches nothing else."""

import random
from types import ModuleType

import pytest

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record import Compression, crc32c, encode, parse_header
from firnmq.record.batch import ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL
from firnmq.record.types import NewRecord
from tests.unit.record.batches import made, record
from tests.unit.record.test_decode import BAD

RECORD_BYTES_MAX = 300
EARLIER = b"what the segment has already"


def taken(codec: ModuleType, batch: bytes) -> tuple[tuple[int, int, int] | None, bytes]:
    buffer = bytearray(batch)
    found = codec.take_plain(memoryview(buffer), 77, 5, crc32c(EARLIER), RECORD_BYTES_MAX)
    return found, bytes(buffer)


def expected(codec: ModuleType, batch: bytes) -> tuple[tuple[int, int, int] | None, bytes]:
    """The same by the functions of the ordinary way."""
    try:
        header = codec.validate(batch, max_record_bytes=RECORD_BYTES_MAX)
    except (InvalidRecord, LimitExceeded):
        return None, batch
    unusual = ATTRIBUTE_CODEC | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
    if header.attributes & unusual or header.producer_id >= 0:
        return None, batch
    stamped = header.at(77, 5).pack() + batch[61:]
    chained = crc32c(stamped, crc32c(EARLIER))
    return (header.record_count, header.max_timestamp, chained), stamped


def resealed(batch: bytearray) -> bytes:
    """With the CRC that its bytes have."""
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def test_a_plain_batch_is_taken(codec: ModuleType) -> None:
    batch = bytes(made(record(0, key=b"k"), record(1, timestamp_delta=5), max_timestamp=1_005))
    assert taken(codec, batch) == expected(codec, batch)
    assert taken(codec, batch)[0] is not None


@pytest.mark.parametrize("compression", [each for each in Compression if each])
def test_a_compressed_one_is_not(codec: ModuleType, compression: Compression) -> None:
    batch = bytes(made(record(0), compression=compression))
    assert taken(codec, batch) == (None, batch)


def test_one_of_a_counting_producer_is_not(codec: ModuleType) -> None:
    batch = bytes(
        encode([NewRecord(value=b"v")], now_ms=1, producer_id=3, producer_epoch=0, base_sequence=0)
    )
    assert taken(codec, batch) == (None, batch)


def test_a_record_above_the_limit_is_not(codec: ModuleType) -> None:
    batch = bytes(encode([NewRecord(value=bytes(RECORD_BYTES_MAX))], now_ms=1))
    assert taken(codec, batch) == (None, batch)


@pytest.mark.parametrize("batch", [bytes(each) for each in BAD.values()], ids=list(BAD))
def test_a_bad_one_is_judged_as_on_the_ordinary_way(codec: ModuleType, batch: bytes) -> None:
    assert taken(codec, batch) == expected(codec, batch)


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_judged_as_on_the_ordinary_way(codec: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    good = bytes(
        encode(
            [NewRecord(value=b"one", key=b"k"), NewRecord(value=None, headers=(("h", b"x"),))],
            now_ms=1,
        )
    )
    kept = 0
    for _ in range(400):
        batch = bytearray(good)
        for _ in range(rng.randint(0, 2)):
            batch[rng.randrange(len(batch))] = rng.choice((0, 1, 2, 16, 32, 127, 128, 255))
        if rng.random() < 0.1:
            del batch[rng.randrange(len(batch)) :]
        sealed = resealed(batch) if len(batch) > 21 and rng.random() < 0.8 else bytes(batch)
        found = taken(codec, sealed)
        assert found == expected(codec, sealed)
        kept += found[0] is not None
        if found[0] is not None:
            assert parse_header(found[1])[0:3:2] == (77, 5)
    assert 0 < kept < 400
