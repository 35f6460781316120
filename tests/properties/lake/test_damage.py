"""Whatever happens to a segment's file, a reader gives the right rows or says what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from firnmq.errors import Corruption
from firnmq.lake.plans.machine import machine_id
from firnmq.lake.plans.plan import SegmentPlan, Split
from firnmq.lake.reading.reader import SegmentUnavailable, read_split
from firnmq.record import Compression, NewRecord, encode, patch_base

BATCHES, PER_BATCH = 5, 4


def content_of(compression: Compression) -> bytes:
    made = bytearray()
    for number in range(BATCHES):
        records = [
            NewRecord(value=b"value %d" % n, key=b"k%d" % n, tags=("t",), timestamp_ms=n)
            for n in range(PER_BATCH)
        ]
        batch = encode(records, now_ms=0, compression=compression)
        patch_base(batch, 0, number * PER_BATCH, 0)
        made += batch
    return bytes(made)


CONTENTS = [content_of(each) for each in Compression]


def split_of(path: Path) -> Split:
    segment = SegmentPlan(
        base_offset=0,
        end_offset=BATCHES * PER_BATCH,
        is_sealed=True,
        length=path.stat().st_size,
        path=str(path),
    )
    return Split(
        topic="t",
        topic_id="i",
        shard=0,
        start_offset=0,
        end_offset=segment.end_offset,
        segments=(segment,),
        leader=None,
        machine=machine_id(),
        store=None,
        options={},
    )


def rows(path: Path) -> list[object]:
    return [row for batch in read_split(split_of(path)) for row in batch.to_pylist()]


damages = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10_000), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10_000), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0, 10_000), st.integers(0, 255)),
    st.tuples(st.just("remove"), st.integers(0, 10_000), st.integers(1, 200)),
)


def damaged(content: bytes, kind: str, position: int, amount: int) -> bytes:
    at = position % len(content)
    match kind:
        case "flip":
            return content[:at] + bytes([content[at] ^ amount]) + content[at + 1 :]
        case "cut":
            return content[:at]
        case "insert":
            return content[:at] + bytes([amount]) + content[at:]
        case _:
            return content[:at] + content[at + amount :]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, len(CONTENTS) - 1), damage=damages)
@example(which=0, damage=("remove", 1507, 119))  # A batch that says it has no records.
def test_damage_is_found(tmp_path: Path, which: int, damage: tuple[str, int, int]) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(CONTENTS[which])
    expected = rows(path)
    assert len(expected) == BATCHES * PER_BATCH
    path.write_bytes(damaged(CONTENTS[which], *damage))
    try:
        found = rows(path)
    except (Corruption, SegmentUnavailable) as error:
        is_named = str(path) in str(error)
    else:
        is_named = found == expected  # The leader's epoch means nothing to readers.
    assert is_named


def test_a_file_that_may_not_be_read_is_no_place(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(CONTENTS[0])
    split = split_of(path)
    path.unlink()
    os.symlink(tmp_path / "nothing", path)
    with pytest.raises(SegmentUnavailable):
        list(read_split(split))
