"""Entries of deletions: control batches that every reader of records passes over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.engines.catalog.transactions import is_commit_marker, marker_batch
from firnmq.errors import Corruption
from firnmq.record import NewRecord, collect, decode, encode, parse_header, walk
from firnmq.record.control import control_record
from firnmq.record.deletion import (
    DELETION_KIND,
    OFFSETS_PER_ENTRY_MAX,
    Deletion,
    deletion_batch,
    deletion_of,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "deletion_v0.json").read_text("utf-8"))
EXAMPLE = Deletion((3, 5, 2**40), ((b"", 7), (b"key", 2**41)))

offsets = st.sets(st.integers(0, 2**63 - 1), max_size=20).map(lambda each: tuple(sorted(each)))
keys = st.dictionaries(st.binary(max_size=300), st.integers(1, 2**63 - 1), max_size=5)
deletions = st.builds(Deletion, offsets, keys.map(lambda each: tuple(sorted(each.items()))))


@given(deletions)
def test_an_entry_says_what_it_was_made_of(deletion: Deletion) -> None:
    batch = deletion_batch(deletion)
    assert deletion_of(batch) == deletion
    assert walk(batch, 0).valid_end == len(batch)


@given(deletions, st.integers(0, 2**63 - 1))
def test_what_is_above_and_below_is_all(deletion: Deletion, start: int) -> None:
    above, below = deletion.above(start), deletion.below(start)
    assert sorted(above.offsets + below.offsets) == list(deletion.offsets)
    assert sorted(above.keys + below.keys) == list(deletion.keys)
    assert below.reach <= start
    assert not any(above) or above.reach > start
    assert deletion.reach == max(above.reach, below.reach)


def test_the_bytes_are_as_ever() -> None:
    assert deletion_batch(EXAMPLE).hex() == GOLDEN["batch"]
    assert EXAMPLE.pack().hex() == GOLDEN["value"]
    assert deletion_of(bytes.fromhex(GOLDEN["batch"])) == EXAMPLE


def test_an_entry_is_no_record_and_has_no_producer_nor_time() -> None:
    batch = deletion_batch(EXAMPLE)
    header = parse_header(batch)
    assert header.is_control
    assert not header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.record_count, header.last_offset, header.max_timestamp) == (1, 0, -1)
    assert len(decode([batch])) == 0
    assert not collect(batch).keys


def test_it_is_told_from_other_batches() -> None:
    marker = marker_batch(7, 2, is_commit=True)
    assert deletion_of(marker) is None
    assert deletion_of(encode([NewRecord(value=b"v")], now_ms=1)) is None
    assert control_record(deletion_batch(EXAMPLE)).kind == DELETION_KIND
    assert not is_commit_marker(deletion_batch(EXAMPLE))


def test_many_offsets_and_keys_become_small_entries() -> None:
    many = Deletion(tuple(range(2 * OFFSETS_PER_ENTRY_MAX + 1)), ((b"a", 1), (b"b", 2)))
    parts = list(many.parts())
    assert [(len(each.offsets), len(each.keys)) for each in parts] == [
        (OFFSETS_PER_ENTRY_MAX, 0),
        (OFFSETS_PER_ENTRY_MAX, 0),
        (1, 0),
        (0, 2),
    ]
    assert not list(Deletion().parts())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        EXAMPLE.pack()[:-1],
        EXAMPLE.pack() + b"\0",
        b"\0\1" + EXAMPLE.pack()[2:],
        Deletion((5, 3)).pack(),
        Deletion((3, 3)).pack(),
        b"\0\0" + b"\xff" * 8,
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Corruption):
        Deletion.unpack(data)
