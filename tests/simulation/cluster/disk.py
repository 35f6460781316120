"""A node's disk: logs of segments that survive a crash as far as they are durable, and fences."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from firnmq.cluster.replication.values import (
    EMPTY_CRC,
    NO_FENCE,
    Crc,
    Fence,
    Incarnation,
    Point,
    SegmentId,
)
from firnmq.ids import Offset


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    """No other append gets it."""
    count: int
    producer: int
    sequence: int
    """-1: the producer is not idempotent."""

    def chained(self, crc: Crc) -> Crc:
        return Crc(zlib.crc32(b"%d.%d" % (self.number, self.count), crc))


class NoSuchEnd(AssertionError):
    """Two replicas have different batches."""


@dataclass(slots=True)
class Log:
    """A replica's bytes. Everything from `durable_count` on is lost by a crash."""

    start: Offset
    batches: list[Batch] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    durable_count: int = 0
    fence: Fence = NO_FENCE

    def point(self, count: int) -> Point:
        return self.points[count - 1] if count else Point(self.start, EMPTY_CRC)

    @property
    def end(self) -> Point:
        return self.point(len(self.batches))

    @property
    def durable(self) -> Point:
        return self.point(self.durable_count)

    def append(self, batch: Batch) -> Point:
        end = self.end
        point = Point(Offset(end.end + batch.count), batch.chained(end.crc))
        self.batches.append(batch)
        self.points.append(point)
        return point

    def count_at(self, end: Offset) -> int:
        """How many batches are below `end`, which must be the end of one of them."""
        if end == self.start:
            return 0
        for at, point in enumerate(self.points, 1):
            if point.end == end:
                return at
        raise NoSuchEnd(f"no batch ends at {end}")

    def truncate(self, count: int) -> None:
        del self.batches[count:], self.points[count:]
        self.durable_count = min(self.durable_count, count)


class Disk:
    """Logs, and one lane whose operations never overtake each other."""

    def __init__(self) -> None:
        self.logs: dict[SegmentId, Log] = {}
        self.lane: deque[tuple[SegmentId, Callable[[], None]]] = deque()
        self.slowness = 1
        self.failing: set[SegmentId] = set()
        self.incarnation: Incarnation | None = None
        """The life whose durable bytes these are; None once something of them is lost."""
        self.made_in: Incarnation | None = None
        """The incarnation since which nothing durable was lost; None: the next one."""

    def log(self, segment: SegmentId, start: Offset) -> Log:
        found = self.logs.get(segment)
        if found is None:
            found = self.logs[segment] = Log(start)
        return found

    def crash(self, rng: random.Random) -> None:
        """What was written and not synced survives in part; the disk may have done more."""
        self.lane.clear()
        self.failing.clear()
        for log in self.logs.values():
            log.truncate(rng.randint(log.durable_count, len(log.batches)))
            log.durable_count = len(log.batches)

    def lose_tail(self, rng: random.Random) -> bool:
        """Durable batches vanish, a few or many; fences are synced and stay."""
        is_lost = False
        for log in self.logs.values():
            least = rng.choice([0, max(0, len(log.batches) - 4)])
            count = rng.randint(least, len(log.batches))
            if rng.random() < 0.8 and count < len(log.batches):
                log.truncate(count)
                is_lost = True
        return is_lost

    def wipe(self) -> None:
        self.logs.clear()
