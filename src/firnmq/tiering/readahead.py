"""Notices who reads a segment from front to back, and has the next chunks fetched beforehand.

A read that begins where another has just ended belongs to the same *stream*. The more often a
stream has moved on, the further ahead is fetched, up to a depth; a read that goes on from nowhere
begins a stream of its own and has nothing fetched ahead.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from firnmq.tiering.cache import ChunkCache
from firnmq.tiering.extents import ObjectPart

_STREAMS_MAX = 8
"""Of one segment. A reader that is the ninth begins anew and reads more slowly."""
_PARTS_MAX = 4096
"""Segments whose streams are remembered."""


class _Stream:
    __slots__ = ("end", "moves", "start")

    def __init__(self, start: int, end: int, moves: int = 0) -> None:
        self.start = start
        self.end = end
        self.moves = moves
        """How often it has gone on."""


class ReadAhead:
    """The streams of all segments. Safe with threads."""

    def __init__(self, cache: ChunkCache, depth: int) -> None:
        self._cache = cache
        self._depth = depth
        self._lock = threading.Lock()
        self._streams: OrderedDict[str, list[_Stream]] = OrderedDict()

    def is_continued(self, part: ObjectPart, position: int) -> bool:
        """Whether a read from here on goes on where another has been."""
        with self._lock:
            return self._find(part, position) is not None

    def move(self, part: ObjectPart, position: int, end: int, following: ObjectPart | None) -> None:
        """Notes that these bytes are being read. `following` is what comes after the part."""
        with self._lock:
            stream = self._find(part, position)
            if stream is None:
                self._add(part, _Stream(position, end))
                return
            if end <= stream.end:
                return  # Read once more, or by another one close behind.
            stream.start, stream.end = position, end
            stream.moves += 1
            depth = min(self._depth, 3 ** (stream.moves - 1))
            if depth < 1:
                return
            chunk_bytes = self._cache.chunk_bytes
            piece_bytes = self._cache.piece_bytes
            first = -(-end // piece_bytes) * piece_bytes
            until = (end // chunk_bytes + 1 + depth) * chunk_bytes
            beyond = until - part.length
            if beyond > 0 and following is not None and following.length:
                if not self._streams.get(following.name):
                    self._add(following, _Stream(0, 0, stream.moves))
            else:
                following = None
        self._cache.prefetch(part, first, until)
        if following is not None:
            self._cache.prefetch(following, 0, -(-beyond // chunk_bytes) * chunk_bytes)

    def forget(self, part: ObjectPart) -> None:
        with self._lock:
            self._streams.pop(part.name, None)

    def _find(self, part: ObjectPart, position: int) -> _Stream | None:
        streams = self._streams.get(part.name)
        if streams is None:
            return None
        self._streams.move_to_end(part.name)
        for stream in reversed(streams):
            if stream.start <= position <= stream.end:
                return stream
        return None

    def _add(self, part: ObjectPart, stream: _Stream) -> None:
        streams = self._streams.setdefault(part.name, [])
        streams.append(stream)
        if len(streams) > _STREAMS_MAX:
            del streams[0]
        if len(self._streams) > _PARTS_MAX:
            self._streams.popitem(last=False)
