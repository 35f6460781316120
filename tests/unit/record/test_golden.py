"""Committed bytes are read as they were meant, in this version and in every later one."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from firnmq.record import Compression, Record, parse_header

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "record_batch_v2.json").read_text(encoding="utf-8")
)
BATCHES = {name: bytes.fromhex(text) for name, text in GOLDEN["batches"].items()}


def raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


RECORDS = [
    Record(
        offset=entry["offset"],
        timestamp_ms=entry["timestamp_ms"],
        key=raw(entry["key"]),
        value=raw(entry["value"]),
        headers=tuple((name, raw(content)) for name, content in entry["headers"]),
        tags=tuple(entry["tags"]),
        expire_at_ms=entry["expire_at_ms"],
    )
    for entry in GOLDEN["records"]
]


def test_every_codec_has_golden_bytes() -> None:
    names = {codec.name.lower() for codec in Compression}
    assert names | {"snappy_raw", "zstd_without_size"} == set(BATCHES)


@pytest.mark.parametrize("name", BATCHES)
def test_golden_bytes_are_read_as_they_were_meant(codec: ModuleType, name: str) -> None:
    batch = BATCHES[name]
    assert codec.validate(batch).record_count == len(RECORDS)
    assert codec.walk(batch).reason is None
    assert codec.decode([batch]).records() == RECORDS
    terms = codec.collect(batch)
    assert terms.keys == {record.key: record.offset for record in RECORDS if record.key is not None}
    assert sorted(terms.tags) == sorted(tag.encode() for tag in RECORDS[2].tags)


def test_the_golden_header() -> None:
    assert parse_header(BATCHES["none"])._asdict() == GOLDEN["header"]


def test_uncompressed_bytes_are_written_as_they_are_committed(codec: ModuleType) -> None:
    header = parse_header(BATCHES["none"])
    written = codec.encode_columns(
        codec.decode([BATCHES["gzip"]]),
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    assert written == BATCHES["none"]
