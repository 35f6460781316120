"""Topics that a test makes, grows and removes; the subscriptions of classic consumers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from firnmq.brokers.kafka.groups.consumer.messages import InvalidPattern, TopicSize


class FakeTopics:
    """A `Topics`. Regular expressions are Python's, which tests must not tell from RE2's."""

    def __init__(self, **counts: int) -> None:
        self.revision = 0
        self._made = 0
        self._sizes: dict[str, TopicSize] = {}
        for name, count in counts.items():
            self.set(name, count)

    def set(self, name: str, count: int) -> None:
        """Makes a topic, or gives it more partitions."""
        known = self._sizes.get(name)
        self._made += known is None
        topic_id = f"{self._made:032x}" if known is None else known.topic_id
        self._sizes[name] = TopicSize(topic_id, count)
        self.revision += 1

    def remove(self, name: str) -> None:
        del self._sizes[name]
        self.revision += 1

    @property
    def names(self) -> list[str]:
        return sorted(self._sizes)

    def find(self, name: str) -> TopicSize | None:
        return self._sizes.get(name)

    def name_of(self, topic_id: str) -> str | None:
        found = (name for name, size in self._sizes.items() if size.topic_id == topic_id)
        return next(found, None)

    def matching(self, pattern: str) -> frozenset[str]:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise InvalidPattern(str(error)) from None
        return frozenset(filter(compiled.fullmatch, self._sizes))

    def partitions(self, *names: str) -> frozenset[tuple[str, int]]:
        """All partitions of topics, as groups know them."""
        sizes = [self._sizes[name] for name in names if name in self._sizes]
        return frozenset((size[0], index) for size in sizes for index in range(size[1]))


def subscription(topics: Iterable[str], owned: Iterable[tuple[str, int]] = ()) -> bytes:
    """What a classic consumer says about itself, version 1."""
    names, places = sorted(topics), sorted(owned)
    written = struct.pack(">hi", 1, len(names))
    for name in names:
        written += struct.pack(">h", len(name)) + name.encode()
    written += struct.pack(">ii", -1, len(places))
    for name, index in places:
        written += struct.pack(">h", len(name)) + name.encode() + struct.pack(">ii", 1, index)
    return written
