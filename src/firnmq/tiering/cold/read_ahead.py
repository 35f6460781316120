"""Detects sequential reads of a segment and prefetches the next chunks.

A read that begins where another has just ended belongs to the same *stream*. The more a stream has
read, the further ahead it prefetches, up to a depth. A read that continues no stream starts a new
one and prefetches nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from firnmq.tiering.cold.cache import ChunkCache
from firnmq.tiering.cold.extents import ObjectPart
from firnmq.tiering.cold.throttle import ColdThrottle

_STREAMS_MAX = 8
"""Of one segment. A ninth reader replaces the oldest stream, whose prefetching starts again."""
_PARTS_MAX = 4096
"""Segments whose streams are remembered."""


AHEAD_S = 0.5
"""Prefetched bytes may use at most this much time of the rate limit: they are charged in advance,
and other reads must not wait long for them."""
_MOVES_KEPT = 64
_AHEAD_PER_READ = 8
"""Bytes prefetched per byte read: a reader of a few records costs little, and a long scan reaches
its full depth after four megabytes."""


class _Stream:
    __slots__ = ("ahead_end", "end", "read_bytes", "start")

    def __init__(self, start: int, end: int, read_bytes: int) -> None:
        self.start = start
        self.end = end
        self.read_bytes = read_bytes
        """Total since the first read."""
        self.ahead_end = end
        """The end of what was prefetched."""


class ReadAhead:
    """The streams of all segments. Safe with threads."""

    def __init__(self, cache: ChunkCache, depth: int, throttle: ColdThrottle | None = None) -> None:
        self._cache = cache
        self._depth = depth
        self._throttle = throttle or ColdThrottle()
        self._lock = threading.Lock()
        self._streams: OrderedDict[str, list[_Stream]] = OrderedDict()
        self._chunks_max = cache.memory_bytes // cache.chunk_bytes
        """For all streams: a chunk that is evicted before it is read was fetched in vain."""
        self._last_moves: deque[int] = deque(maxlen=_MOVES_KEPT)
        """The streams that read last; the distinct ones among them share the memory."""

    def bytes_before(self, part: ObjectPart, position: int) -> int:
        """Bytes read so far by the stream that continues at `position`; 0 if there is none."""
        with self._lock:
            stream = self._find(part, position)
            return 0 if stream is None else stream.read_bytes

    def move(self, part: ObjectPart, position: int, end: int, following: ObjectPart | None) -> None:
        """Records a read and prefetches. `following` is the segment after this one."""
        piece_bytes = self._cache.piece_bytes
        with self._lock:
            stream = self._find(part, position)
            if stream is None:
                self._add(part, _Stream(position, end, end - position))
                return
            if end <= stream.end:
                return  # A repeated read, or another reader close behind.
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
                return  # Already prefetched up to there.
            stream.ahead_end = until
            if following is not None and not is_followed:
                self._add(following, _Stream(0, 0, stream.read_bytes))
        self._cache.prefetch(part, -(-end // piece_bytes) * piece_bytes, until, is_scan=True)
        if following is not None:
            chunk_bytes = self._cache.chunk_bytes
            until = -(-beyond // chunk_bytes) * chunk_bytes
            self._cache.prefetch(following, 0, until, is_scan=True)

    def _until(self, stream: _Stream) -> int | None:
        """The position up to which a stream should prefetch; None if it has prefetched enough."""
        chunk_bytes = self._cache.chunk_bytes
        # Each stream also holds the chunk that it reads, and rounding up may add another.
        share = self._chunks_max // len(set(self._last_moves)) - 2
        depth = min(self._depth, share)
        if depth < 1:
            return None
        allowed_bytes = self._throttle.bytes_within(AHEAD_S)
        if allowed_bytes is not None:
            depth = min(depth, max(allowed_bytes // chunk_bytes, 1))
        ahead_bytes = min(_AHEAD_PER_READ * stream.read_bytes, depth * chunk_bytes)
        if ahead_bytes >= chunk_bytes:
            return -(-(stream.end + ahead_bytes) // chunk_bytes) * chunk_bytes
        if stream.ahead_end - stream.end > ahead_bytes // 2:
            return None  # Avoids many small fetches.
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
