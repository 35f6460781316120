"""What is fetched ahead of those who read a segment from front to back."""

from typing import cast

import pytest

from firnmq.tiering.cold.cache import ChunkCache
from firnmq.tiering.cold.extents import ObjectPart
from firnmq.tiering.cold.read_ahead import ReadAhead
from firnmq.tiering.cold.throttle import ColdThrottle

PIECE, CHUNK = 10, 100
FIRST = ObjectPart("first", 0, 20 * CHUNK)
SECOND = ObjectPart("second", 0, 20 * CHUNK)


class NotedCache:
    """Notes what is to be fetched."""

    piece_bytes = PIECE
    chunk_bytes = CHUNK
    memory_bytes = 20 * CHUNK

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def prefetch(self, part: ObjectPart, start: int, end: int, *, is_scan: bool) -> None:
        assert is_scan, "no reader needs it yet"
        self.asked.append((part.key, start, end))


@pytest.fixture
def cache() -> NotedCache:
    return NotedCache()


@pytest.fixture
def ahead(cache: NotedCache) -> ReadAhead:
    return ReadAhead(cast(ChunkCache, cache), depth=4)


def read(
    ahead: ReadAhead, part: ObjectPart, start: int, end: int, following: ObjectPart | None = None
) -> None:
    for position in range(start, end, 25):
        ahead.move(part, position, position + 25, following)


def test_a_stream_is_looked_at_once_in_every_chunk(ahead: ReadAhead, cache: NotedCache) -> None:
    read(ahead, FIRST, 0, 3 * CHUNK)
    cache.asked.clear()
    read(ahead, FIRST, 3 * CHUNK, 6 * CHUNK)
    assert [end for _, _, end in cache.asked] == [8 * CHUNK, 9 * CHUNK, 10 * CHUNK]


def test_a_stream_that_has_to_share_is_still_looked_at(ahead: ReadAhead, cache: NotedCache) -> None:
    read(ahead, FIRST, 0, 3 * CHUNK)
    others = [ObjectPart(f"other-{number}", 0, 20 * CHUNK) for number in range(4)]
    for other in others:
        read(ahead, other, 0, CHUNK)
    cache.asked.clear()
    read(ahead, FIRST, 3 * CHUNK, 6 * CHUNK)
    asked = [end for key, _, end in cache.asked if key == "first"]
    assert len(asked) >= 3, "what the others displace is fetched before it is needed"
    assert all(end <= 9 * CHUNK for end in asked)


def test_what_follows_is_fetched_however_late_it_is_known(
    ahead: ReadAhead, cache: NotedCache
) -> None:
    read(ahead, FIRST, 0, 19 * CHUNK + 50)
    cache.asked.clear()
    read(ahead, FIRST, 19 * CHUNK + 50, 20 * CHUNK, SECOND)
    assert ("second", 0, 4 * CHUNK) in cache.asked
    assert len([key for key, *_ in cache.asked if key == "second"]) == 1


@pytest.mark.parametrize(("bytes_per_s", "chunks"), [(1, 1), (4 * CHUNK, 2), (1_000 * CHUNK, 4)])
def test_beside_appends_no_more_is_fetched_ahead_than_the_throttle_allows(
    cache: NotedCache, bytes_per_s: int, chunks: int
) -> None:
    """Otherwise other reads would wait for bytes that no reader needs yet."""
    appends = 0
    throttle = ColdThrottle(append_count=lambda: appends, bytes_per_s=bytes_per_s)
    ahead = ReadAhead(cast(ChunkCache, cache), depth=4, throttle=throttle)
    read(ahead, FIRST, 0, 3 * CHUNK)
    assert cache.asked[-1][2] == 7 * CHUNK
    appends = 1
    read(ahead, SECOND, 0, 3 * CHUNK)
    assert cache.asked[-1][2] == (3 + chunks) * CHUNK
