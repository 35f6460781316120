"""The codec against two implementations that know nothing of it: aiokafka and kafka-python.

They write and we read; we write and they read, with every codec. aiokafka compresses with the same
library as we do; kafka-python with others (lz4, python-snappy, zstandard), so it is the independent
check of the frames.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest
from aiokafka.record._crecords import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firnmq.record import Compression, NewRecord, Record
from tests.properties.record.strategies import BATCHES, CODECS

IMPLEMENTATIONS = {
    "aiokafka": (DefaultRecordBatch, DefaultRecordBatchBuilder),
    "aiokafka in Python": (
        aiokafka_records._DefaultRecordBatchPy,
        aiokafka_records._DefaultRecordBatchBuilderPy,
    ),
    "kafka-python": (kafka_records.DefaultRecordBatch, kafka_records.DefaultRecordBatchBuilder),
}
EVERY_FORM = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
OFFSETS = st.integers(0, 2**62)
EPOCHS = st.integers(-1, 2**15 - 1)
NUMBERS = st.integers(-1, 2**31 - 1)


def stored_headers(record: NewRecord) -> list[tuple[str, bytes | None]]:
    headers = list(record.headers)
    headers += [("tag", tag.encode()) for tag in record.tags]
    if record.expire_at_ms is not None:
        headers.append(("expire-at", b"%d" % record.expire_at_ms))
    return headers


def written_by(
    name: str, records: Sequence[NewRecord], compression: Compression, producer: Sequence[int]
) -> bytes:
    _, builder_type = IMPLEMENTATIONS[name]
    builder: Any = builder_type(2, int(compression), 0, *producer, 2**30)
    for offset, record in enumerate(records):
        done = builder.append(
            offset, record.timestamp_ms, record.key, record.value, stored_headers(record)
        )
        assert done is not None
    return bytes(builder.build())


def assert_same(new: NewRecord, headers: Sequence[tuple[str, bytes | None]], other: Any) -> None:
    assert other.key == new.key
    assert other.value == new.value
    assert list(other.headers) == list(headers)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@EVERY_FORM
@given(records=BATCHES, compression=CODECS, base_offset=OFFSETS, producer_id=NUMBERS, epoch=EPOCHS)
def test_they_read_what_we_write(
    codec: ModuleType,
    name: str,
    records: list[NewRecord],
    compression: Compression,
    base_offset: int,
    producer_id: int,
    epoch: int,
) -> None:
    batch = codec.encode(
        records,
        now_ms=123,
        base_offset=base_offset,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=producer_id,
    )
    reader_type, _ = IMPLEMENTATIONS[name]
    reader: Any = reader_type(bytes(batch))
    assert reader.validate_crc()
    assert reader.base_offset == base_offset
    assert reader.compression_type == compression
    assert (reader.producer_id, reader.producer_epoch) == (producer_id, epoch)
    assert reader.base_sequence == producer_id
    times = [123 if new.timestamp_ms is None else new.timestamp_ms for new in records]
    assert reader.max_timestamp == max(times)
    read = list(reader)
    assert len(read) == len(records)
    for index, (new, other) in enumerate(zip(records, read, strict=True)):
        assert other.offset == base_offset + index
        assert other.timestamp == times[index]
        assert_same(new, stored_headers(new), other)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@EVERY_FORM
@given(records=BATCHES, compression=CODECS)
def test_we_read_what_they_write(
    codec: ModuleType, name: str, records: list[NewRecord], compression: Compression
) -> None:
    timed = [
        NewRecord(
            value=new.value,
            key=new.key,
            headers=new.headers,
            tags=new.tags,
            timestamp_ms=new.timestamp_ms or 0,
            expire_at_ms=new.expire_at_ms,
        )
        for new in records
    ]
    batch = written_by(name, timed, compression, (7, 8, 9))
    header = codec.validate(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 8, 9)
    stored: list[Record] = codec.decode([batch]).records()
    assert [record.offset for record in stored] == list(range(len(records)))
    for new, record in zip(timed, stored, strict=True):
        assert record.timestamp_ms == new.timestamp_ms
        assert_same(new, stored_headers(new), record)


@pytest.mark.parametrize("name", ["aiokafka", "kafka-python"])
@EVERY_FORM
@given(records=BATCHES)
def test_uncompressed_bytes_are_identical(
    codec: ModuleType, name: str, records: list[NewRecord]
) -> None:
    timed = [
        NewRecord(value=new.value, key=new.key, headers=new.headers, timestamp_ms=5)
        for new in records
    ]
    ours = codec.encode(timed, now_ms=1, leader_epoch=0)
    theirs = written_by(name, timed, Compression.NONE, (-1, -1, -1))
    # The leader epoch is the broker's to set and differs between the two.
    assert ours[:12] == theirs[:12]
    assert ours[16:] == theirs[16:]
