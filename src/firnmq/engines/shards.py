"""The shards of an engine: which there are, and their topics' options. Those of a range are not
kept one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from firnmq.config import TopicConfig
from firnmq.engines.catalog.ranges import ShardRange, ShardRanges
from firnmq.engines.catalog.state import ShardSpec


class TopicOptions(NamedTuple):
    """The options of a topic whose shards are ranges."""

    config: TopicConfig
    revision: int
    """Of the topic's record that they are from."""


class RangePart(NamedTuple):
    """Shards of a range that are being deleted."""

    shards: ShardRange
    options: TopicOptions


class ShardTable:
    """Finds shards by name and by uid. Safe with threads."""

    def __init__(
        self,
        singles: Iterable[ShardSpec],
        ranges: Iterable[tuple[ShardRange, TopicConfig]] = (),
    ) -> None:
        self._singles = {spec.name: spec for spec in singles}
        self._names = {spec.uid: spec.name for spec in self._singles.values()}
        self._ranges = ShardRanges()
        self._options: dict[str, TopicOptions] = {}
        """By topic id, of topics with ranges."""
        self._lock = threading.Lock()
        """Held while ranges change."""
        for each, config in ranges:
            self._ranges.add(each)
            self._options[each.topic_id] = TopicOptions(config, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._singles or (
            isinstance(name, str) and self._ranges.find(name) is not None
        )

    def get(self, name: str) -> ShardSpec | None:
        spec = self._singles.get(name)
        if spec is not None:
            return spec
        found = self._ranges.find(name)
        if found is None:
            return None
        options = self._options.get(found[0].topic_id)
        return None if options is None else _spec(name, found[1], options)

    def with_uid(self, uid: int) -> ShardSpec | None:
        name = self._names.get(uid)
        if name is None:
            found = self._ranges.with_uid(uid)
            if found is None:
                return None
            name = found.name_of(uid)
        return self.get(name)

    def singles(self) -> list[ShardSpec]:
        """Shards that are in no range."""
        return list(self._singles.values())

    def __iter__(self) -> Iterator[ShardSpec]:
        """All shards, those of ranges made one after the other."""
        yield from self.singles()
        for each in self._ranges:
            options = self._options.get(each.topic_id)
            if options is not None:
                for uid in range(each.first_uid, each.end_uid):
                    yield _spec(each.name_of(uid), uid, options)

    def __len__(self) -> int:
        return len(self._singles) + sum(each.count for each in self._ranges)

    def is_ranged(self, name: str) -> bool:
        return name not in self._singles and self._ranges.find(name) is not None

    def ranges_of(self, topic_id: str) -> tuple[ShardRange, ...]:
        return self._ranges.of_topic(topic_id)

    def end_seq(self, topic_id: str) -> int:
        """Behind the last seq of a topic's ranges; 0 if it has none."""
        return max((each.end_seq for each in self._ranges.of_topic(topic_id)), default=0)

    # Changes --------------------------------------------------------------------------------------

    def put(self, spec: ShardSpec) -> None:
        """Adds or replaces a shard that is in no range."""
        self._singles[spec.name] = spec
        self._names[spec.uid] = spec.name

    def add_ranges(
        self, ranges: Iterable[ShardRange], config: TopicConfig, revision: int = 0
    ) -> None:
        with self._lock:
            for each in ranges:
                self._options.setdefault(each.topic_id, TopicOptions(config, revision))
                self._ranges.add(each)

    def set_options(self, topic_id: str, config: TopicConfig, revision: int | None) -> bool:
        """Gives the shards of a topic's ranges other options; False if theirs are as new. Without a
        revision they are always newer."""
        with self._lock:
            before = self._options[topic_id].revision
            if revision is not None and revision <= before:
                return False
            self._options[topic_id] = TopicOptions(config, revision or before)
            return True

    def pop(self, name: str) -> ShardSpec | None:
        """Removes a shard that is in no range."""
        spec = self._singles.pop(name, None)
        if spec is not None:
            self._names.pop(spec.uid, None)
        return spec

    def take(self, names: Iterable[str]) -> tuple[list[ShardSpec], list[RangePart]]:
        """Removes shards; those that are not there are passed over."""
        specs = []
        parts = []
        with self._lock:
            of_ranges, others = self._ranges.split(names)
            for whole, gone in of_ranges.items():
                options = self._options[whole.topic_id]
                self._ranges.shrink(whole, gone)
                parts += [RangePart(whole.part(seqs.start, seqs.stop), options) for seqs in gone]
                if not self._ranges.of_topic(whole.topic_id):
                    del self._options[whole.topic_id]
        for name in others:
            spec = self.pop(name)
            if spec is not None:
                specs.append(spec)
        return specs, parts

    def put_back(self, specs: Sequence[ShardSpec], parts: Sequence[RangePart]) -> None:
        """Takes back what `take` gave."""
        for spec in specs:
            self.put(spec)
        for part in parts:
            self.add_ranges([part.shards], part.options.config, part.options.revision)


def _spec(name: str, uid: int, options: TopicOptions) -> ShardSpec:
    return ShardSpec(
        name=name, uid=uid, config=options.config, revision=options.revision, is_ranged=True
    )
