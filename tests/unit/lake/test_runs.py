"""Which batches of a response were aborted."""

from typing import NamedTuple

import pytest

from firnmq.lake.plans.plan import AbortedRange
from firnmq.lake.reading.runs import _committed, hiding

PLAIN, TRANSACTIONAL, MARKER = 0, 0x10, 0x30


class Entry(NamedTuple):
    """What of a BatchEntry is looked at."""

    base_offset: int
    last_offset: int
    producer_id: int = -1
    attributes: int = PLAIN


LOG = [
    Entry(0, 4),
    Entry(5, 9, 1, TRANSACTIONAL),
    Entry(10, 14, 2, TRANSACTIONAL),
    Entry(15, 15, 1, MARKER),  # Aborts 5 to 9.
    Entry(16, 19, 1, TRANSACTIONAL),
    Entry(20, 20, 2, MARKER),  # Commits 10 to 14.
    Entry(21, 21, 1, MARKER),  # Commits 16 to 19.
    Entry(22, 29, 2, TRANSACTIONAL),
    Entry(30, 35, 2, PLAIN),
    Entry(36, 36, 2, MARKER),  # Aborts 22 to 29.
    Entry(37, 40, 2, TRANSACTIONAL),
]
ABORTED = ((2, 22), (1, 5))


@pytest.mark.parametrize("start", range(len(LOG)))
def test_committed_batches_from_anywhere_on(start: int) -> None:
    """A response's list has all that overlap what it holds, and they may have begun before."""
    first = LOG[start].base_offset
    ends = {1: 15, 2: 36}
    aborted = tuple(each for each in ABORTED if ends[each[0]] >= first)
    kept = _committed(LOG[start:], aborted)  # type: ignore[arg-type]
    expected = [each for each in LOG[start:] if each.base_offset not in (5, 22)]
    assert kept == [each for each in expected if each.attributes != MARKER]


def test_aborted_ranges_of_a_plan() -> None:
    hides = hiding(
        [
            AbortedRange(producer_id=1, first_offset=5, marker_offset=15),
            AbortedRange(producer_id=2, first_offset=22, marker_offset=36),
        ]
    )
    assert hides is not None
    assert [each.base_offset for each in LOG if hides(each)] == [5, 22]
    assert hiding([]) is None
