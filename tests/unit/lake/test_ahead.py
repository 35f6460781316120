"""Work that is done ahead ends with its consumer, and so do its errors."""

import threading
from collections.abc import Iterator

import pytest

from firnmq.lake.reading.ahead import Ahead


def test_items_come_in_order() -> None:
    with Ahead(range(1000), 2) as ahead:
        assert list(ahead) == list(range(1000))
    with Ahead([], 2) as ahead:
        assert list(ahead) == []


def test_an_error_comes_after_what_was_made_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("three")

    found: list[int] = []
    with Ahead(source(), 1) as ahead, pytest.raises(KeyError, match="three"):
        found.extend(ahead)
    assert found == [1, 2]


def test_it_stops_at_its_depth_and_with_its_consumer() -> None:
    made: list[int] = []
    is_closed = threading.Event()
    has_made = threading.Semaphore(0)

    def source() -> Iterator[int]:
        try:
            for number in range(1_000_000):
                made.append(number)
                has_made.release()
                yield number
        finally:
            is_closed.set()

    with Ahead(source(), 3) as ahead:
        consumer = iter(ahead)
        assert next(consumer) == 0
        for _ in range(4):
            assert has_made.acquire(timeout=60)
        assert len(made) <= 5  # One taken, three waiting, one in its hand.
    assert is_closed.is_set()
    assert not any(each.name == "firn-ahead" for each in threading.enumerate())
