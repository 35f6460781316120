"""Notices who reads a segment from front to back, and has the next chunks fetched beforehand.

A read that begins where another has just ended belongs to the same *stream*. The more a stream has
read, the further ahead is fetched, up to a depth; a read that goes on from nowhere begins a stream
of its own and has nothing fetched ahead.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from firnmq.tiering.cache import ChunkCache
from firnmq.tiering.courtesy import Courtesy
from firnmq.tiering.extents import ObjectPart

_STREAMS_MAX = 8
"""Of one segment. A reader that is the ninth begins anew and reads more slowly."""
_PARTS_MAX = 4096
"""Segments whose streams are remembered."""


AHEAD_S = 0.5
"""Bytes fetched ahead take at most so long at the rate that is allowed: they are paid for first and
must not keep others waiting for long."""
_MOVES_KEPT = 64
_AHEAD_PER_READ = 8
"""How much is fetched ahead for what has been read: someone who wants a few records and goes on
once costs little, and a long scan is at its full depth after four megabytes."""


class _Stream:
    __slots__ = ("ahead_end", "end", "read_bytes", "start")

    def __init__(self, start: int, end: int, read_bytes: int) -> None:
        self.start = start
        self.end = end
        self.read_bytes = read_bytes
        """In all, from the first read on."""
        self.ahead_end = end
        """How far it has been fetched ahead."""


class ReadAhead:
    """The streams of all segments. Safe with threads."""

    def __init__(self, cache: ChunkCache, depth: int, courtesy: Courtesy | None = None) -> None:
        self._cache = cache
        self._depth = depth
        self._courtesy = courtesy or Courtesy()
        self._lock = threading.Lock()
        self._streams: OrderedDict[str, list[_Stream]] = OrderedDict()
        self._chunks_max = cache.memory_bytes // cache.chunk_bytes
        """For all streams: what is displaced from memory before it is read was fetched in vain."""
        self._last_moves: deque[int] = deque(maxlen=_MOVES_KEPT)
        """Which streams have moved; as many as there are different ones share the memory."""

    def bytes_before(self, part: ObjectPart, position: int) -> int:
        """How much the stream has read that goes on from here; 0 if there is none."""
        with self._lock:
            stream = self._find(part, position)
            return 0 if stream is None else stream.read_bytes

    def move(self, part: ObjectPart, position: int, end: int, following: ObjectPart | None) -> None:
        """Notes that these bytes are being read. `following` is what comes after the part."""
        piece_bytes = self._cache.piece_bytes
        with self._lock:
            stream = self._find(part, position)
            if stream is None:
                self._add(part, _Stream(position, end, end - position))
                return
            if end <= stream.end:
                return  # Read once more, or by another one close behind.
            stream.read_bytes += end - stream.end
            stream.start, stream.end = position, end
            self._last_moves.append(id(stream))
            until = self._until(stream)
            if until is None:
                return
            beyond = until - part.length
            if beyond <= 0 or (following is not None and not following.length):
                following = None
            is_followed = following is None or bool(self._streams.get(following.name))
            if until == stream.ahead_end and is_followed:
                return  # What is on its way need not be looked for with every read.
            stream.ahead_end = until
            if following is not None and not is_followed:
                self._add(following, _Stream(0, 0, stream.read_bytes))
        self._cache.prefetch(part, -(-end // piece_bytes) * piece_bytes, until, is_paced=True)
        if following is not None:
            chunk_bytes = self._cache.chunk_bytes
            until = -(-beyond // chunk_bytes) * chunk_bytes
            self._cache.prefetch(following, 0, until, is_paced=True)

    def _until(self, stream: _Stream) -> int | None:
        """Up to where a stream is to be fetched ahead; None if it has been far enough."""
        chunk_bytes = self._cache.chunk_bytes
        # A stream holds the chunk that it reads, and rounding up may be another one.
        share = self._chunks_max // len(set(self._last_moves)) - 2
        depth = min(self._depth, share)
        if depth < 1:
            return None
        allowed_bytes = self._courtesy.bytes_within(AHEAD_S)
        if allowed_bytes is not None:
            depth = min(depth, max(allowed_bytes // chunk_bytes, 1))
        ahead_bytes = min(_AHEAD_PER_READ * stream.read_bytes, depth * chunk_bytes)
        if ahead_bytes >= chunk_bytes:
            return -(-(stream.end + ahead_bytes) // chunk_bytes) * chunk_bytes
        if stream.ahead_end - stream.end > ahead_bytes // 2:
            return None  # Little at a time would be many small fetches.
        return stream.end + ahead_bytes

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
