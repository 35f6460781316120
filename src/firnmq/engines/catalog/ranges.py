"""Ranges of shards: shards of one topic with consecutive numbers that are kept as one fact.

A topic with a hundred thousand shards would otherwise be as many records, names and objects.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRange:
    """The shards `{topic_id}_{seq}` of `count` consecutive seqs; their uids are consecutive too."""

    topic_id: str
    first_seq: int
    first_uid: int
    count: int

    def has_uid(self, uid: int) -> bool:
        return self.first_uid <= uid < self.first_uid + self.count

    def name_of(self, uid: int) -> str:
        return f"{self.topic_id}_{self.first_seq + uid - self.first_uid}"

    def part(self, first_seq: int, end_seq: int) -> ShardRange:
        """The shards of the range with seqs in [first_seq, end_seq)."""
        return ShardRange(
            topic_id=self.topic_id,
            first_seq=first_seq,
            first_uid=self.first_uid + first_seq - self.first_seq,
            count=end_seq - first_seq,
        )

    @property
    def uids(self) -> tuple[int, int]:
        """All from the first of these up to the second."""
        return self.first_uid, self.end_uid

    @property
    def end_seq(self) -> int:
        return self.first_seq + self.count

    @property
    def end_uid(self) -> int:
        return self.first_uid + self.count


class ShardRanges:
    """Finds the range of a shard by name and by uid. Safe with threads."""

    def __init__(self, ranges: Iterable[ShardRange] = ()) -> None:
        self._lock = threading.Lock()
        """Guards the order by uid; single lookups by topic need no lock."""
        self._by_topic: dict[str, tuple[ShardRange, ...]] = {}
        self._by_uid: list[ShardRange] = []
        for each in sorted(ranges, key=_first_uid):
            self.add(each)

    def __iter__(self) -> Iterator[ShardRange]:
        with self._lock:
            return iter(list(self._by_uid))

    def add(self, new: ShardRange) -> None:
        with self._lock:
            self._by_topic[new.topic_id] = (*self._by_topic.get(new.topic_id, ()), new)
            self._by_uid.insert(bisect_right(self._by_uid, new.first_uid, key=_first_uid), new)

    def remove(self, gone: ShardRange) -> None:
        with self._lock:
            left = tuple(each for each in self._by_topic[gone.topic_id] if each != gone)
            if left:
                self._by_topic[gone.topic_id] = left
            else:
                del self._by_topic[gone.topic_id]
            del self._by_uid[bisect_right(self._by_uid, gone.first_uid, key=_first_uid) - 1]

    def shrink(self, whole: ShardRange, gone: Sequence[range]) -> None:
        """Removes shards with these seqs from a range, which may leave several."""
        self.remove(whole)
        for each in remaining(whole, gone):
            self.add(each)

    def of_topic(self, topic_id: str) -> tuple[ShardRange, ...]:
        return self._by_topic.get(topic_id, ())

    def find(self, name: str) -> tuple[ShardRange, int] | None:
        """The range of the shard of this name, and the shard's uid."""
        topic_id, _, digits = name.rpartition("_")
        ranges = self._by_topic.get(topic_id)
        if ranges is None or not digits.isdecimal() or (digits[0] == "0" and digits != "0"):
            return None
        seq = int(digits)
        for each in ranges:
            if 0 <= seq - each.first_seq < each.count:
                return each, each.first_uid + seq - each.first_seq
        return None

    def with_uid(self, uid: int) -> ShardRange | None:
        with self._lock:
            at = bisect_right(self._by_uid, uid, key=_first_uid) - 1
            found = self._by_uid[at] if at >= 0 else None
        return found if found is not None and found.has_uid(uid) else None

    def split(self, names: Iterable[str]) -> tuple[dict[ShardRange, list[range]], list[str]]:
        """Which of the names are in ranges, as runs of consecutive seqs, and the other names."""
        seqs: dict[ShardRange, list[int]] = {}
        others = []
        for name in names:
            found = self.find(name)
            if found is None:
                others.append(name)
            else:
                seqs.setdefault(found[0], []).append(
                    found[0].first_seq + found[1] - found[0].first_uid
                )
        return {each: runs(of_range) for each, of_range in seqs.items()}, others


class ShardUids(Collection[int]):
    """The uids of shards, those of ranges without a number for each."""

    def __init__(self, single: Iterable[int], ranges: ShardRanges) -> None:
        self._single = frozenset(single)
        self._ranges = ranges

    def __contains__(self, uid: object) -> bool:
        return uid in self._single or (
            isinstance(uid, int) and self._ranges.with_uid(uid) is not None
        )

    def __iter__(self) -> Iterator[int]:
        yield from self._single
        for each in self._ranges:
            yield from range(each.first_uid, each.end_uid)

    def __len__(self) -> int:
        return len(self._single) + sum(each.count for each in self._ranges)


def runs(numbers: Iterable[int]) -> list[range]:
    """The numbers as ranges of consecutive ones, in order."""
    found: list[range] = []
    for number in sorted(set(numbers)):
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def remaining(whole: ShardRange, gone: Sequence[range]) -> list[ShardRange]:
    """What is left of a range without some of its seqs."""
    left = []
    at = whole.first_seq
    for each in (*gone, range(whole.end_seq, whole.end_seq)):
        if each.start > at:
            left.append(whole.part(at, each.start))
        at = max(at, each.stop)
    return left


def span_of(names: Sequence[str], topic_id: str) -> range | None:
    """The seqs of a topic's shards, by their names, if they are consecutive; None if not."""
    if not names:
        return None
    first, last = (name.removeprefix(f"{topic_id}_") for name in (names[0], names[-1]))
    if not (first.isdecimal() and last.isdecimal()):
        return None
    span = range(int(first), int(last) + 1)
    is_whole = len(span) == len(names) and all(
        name == f"{topic_id}_{seq}" for name, seq in zip(names, span, strict=True)
    )
    return span if is_whole else None


def _first_uid(each: ShardRange) -> int:
    return each.first_uid
