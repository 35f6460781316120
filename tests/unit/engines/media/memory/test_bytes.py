"""A segment's bytes in memory, read while they are cut and grow again."""

import sys
import threading
from collections.abc import Iterator

import pytest

from firnmq.engines.catalog.segments import Rows
from firnmq.engines.media.memory.bytes import MemoryBytes
from firnmq.index import Point

SIZE = 16
COUNT = 100
KEPT = 10
CUTS = 1_000


@pytest.fixture
def quick_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def batch(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(SIZE - 8)


def grow(held: MemoryBytes) -> None:
    for number in range(held.length() // SIZE, COUNT):
        held.append([batch(number)], number * SIZE, Rows(), durable=False)


@pytest.mark.usefixtures("quick_switches")
def test_a_reader_meets_a_cut_whole_or_not_at_all() -> None:
    held = MemoryBytes()
    grow(held)
    done = threading.Event()
    failures: list[Exception] = []

    def read() -> None:
        try:
            while not done.is_set():
                for number in range(KEPT, COUNT):
                    assert held.read(number * SIZE, SIZE) in ([], [batch(number)])
                    point = held.nearer(Point(0, 0), number)
                    assert point.position == point.offset * SIZE
        except Exception as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(CUTS):
        held.truncate(KEPT * SIZE)
        grow(held)
    done.set()
    reader.join()
    if failures:
        raise failures[0]
    assert held.read(0, COUNT * SIZE) == [batch(number) for number in range(COUNT)]


def test_who_reads_before_a_cut_keeps_what_it_has() -> None:
    held = MemoryBytes()
    grow(held)
    found = held.read(0, COUNT * SIZE)
    held.truncate(KEPT * SIZE)
    assert len(found) == COUNT
    assert held.length() == KEPT * SIZE
    assert held.read(KEPT * SIZE, SIZE) == []
