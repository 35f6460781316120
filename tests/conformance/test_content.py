"""What a record may hold comes back as it was."""

import pytest

from firnmq.errors import InvalidRecord
from firnmq.record import NewRecord, Record
from tests.conformance.lab import Shard

CONTENTS = {
    "null value": NewRecord(value=None),
    "null value with key": NewRecord(value=None, key=b"k"),
    "empty value": NewRecord(value=b""),
    "empty key": NewRecord(value=b"v", key=b""),
    "headers": NewRecord(value=b"v", headers=(("a", b"1"), ("a", b"2"), ("b", b""))),
    "null header": NewRecord(value=b"v", headers=(("a", None),)),
    "empty header name": NewRecord(value=b"v", headers=(("", b"x"),)),
    "unicode": NewRecord(
        value="снег".encode(),
        key="雪".encode(),
        headers=(("❄", b"neige"),),
        tags=("Schnee ü",),
    ),
    "all bytes": NewRecord(value=bytes(range(256)) * 4, key=bytes(range(256))),
    "time zero": NewRecord(value=b"v", timestamp_ms=0),
    "far future": NewRecord(value=b"v", timestamp_ms=2**61),
}


@pytest.mark.parametrize("given", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_record_comes_back_as_it_was(shard: Shard, given: NewRecord) -> None:
    shard.append(given)
    shard.append(*[given] * 20)
    timestamp = shard.lab.clock.now_ms() if given.timestamp_ms is None else given.timestamp_ms
    tag_headers = tuple(("tag", tag.encode()) for tag in given.tags)
    expected = [
        Record(
            offset=offset,
            timestamp_ms=timestamp,
            key=given.key,
            value=given.value,
            headers=given.headers + tag_headers,
            tags=given.tags,
            expire_at_ms=None,
        )
        for offset in range(21)
    ]
    assert shard.records() == expected
    assert shard.raw_records() == expected
    if given.key is not None:
        assert shard.by_key(given.key) == expected[20]
    for tag in given.tags:
        assert shard.by_tag(tag).records() == expected
    assert shard.read(0).to_arrow().num_rows == 21


@pytest.mark.parametrize(
    "bad",
    [
        NewRecord(value="text"),  # type: ignore[arg-type]
        NewRecord(value=b"v", key="text"),  # type: ignore[arg-type]
        NewRecord(value=b"v", headers=(("a",),)),  # type: ignore[arg-type]
        NewRecord(value=b"v", headers=(("\ud800", b""),)),
        NewRecord(value=b"v", tags="abc"),  # type: ignore[arg-type]
        NewRecord(value=b"v", timestamp_ms=-1),
        NewRecord(value=b"v", timestamp_ms=2**62),
        NewRecord(value=b"v", expire_at_ms=-1),
        b"not a record",
    ],
)
def test_what_cannot_be_stored_is_refused(shard: Shard, bad: NewRecord) -> None:
    with pytest.raises(InvalidRecord):
        shard.append(bad)
    assert shard.end == 0
