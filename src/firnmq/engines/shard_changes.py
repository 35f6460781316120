"""Making, deleting, handing over and reconfiguring the shards of an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from firnmq.config import Durability, TopicConfig
from firnmq.engines.catalog.ranges import span_of
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.due import DueTimes
from firnmq.engines.logs import ShardLogs
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.log import STORAGE_ERRORS
from firnmq.errors import AlreadyExists, InvalidArgument, NotLeader, storage_failure


class ShardChanges:
    """Safe with threads."""

    def __init__(self, logs: ShardLogs, state: ShardState, due: DueTimes | None) -> None:
        self._logs = logs
        self._due = due
        self._state = state
        self._to_follow: set[str] = set()
        """Topics whose options have changed, which not all of their shards have yet."""

    def create_shard(self, name: str, config: TopicConfig) -> ShardSpec:
        return self.create_shards([name], config)[0]

    def create_shards(
        self, names: Sequence[str], config: TopicConfig, topic_id: str | None = None
    ) -> list[ShardSpec]:
        """Makes many shards at once, with their topic's options if they are of a topic. Those that
        are kept as ranges are not among what it returns."""
        self._logs.check_open()
        shards = self._logs.shards
        seqs = None if topic_id is None else span_of(names, topic_id)
        if topic_id is not None and seqs is not None:
            added = self._state.add_range(topic_id, seqs, config)
            if added is not None:
                if self._due is not None:
                    self._due.begin(topic_id, config)
                shards.add_ranges(added, config)
                return []
        for name in names:
            if shards.is_ranged(name):
                raise AlreadyExists("shard", name)
        specs = self._state.add_shards(names, config, topic_id)
        for spec in specs:
            shards.put(spec)
        return specs

    def delete_shard(self, name: str) -> None:
        """Removes a shard with all its records, without opening it: a corrupt one can go too."""
        self._logs.spec(name)
        self.delete_shards([name])

    def delete_shards(self, names: Sequence[str]) -> None:
        """Removes shards; those that are not there are passed over, those that only the catalog
        knows go too.

        Their bytes go first, so that after a crash the catalog still knows what is left of them.
        """
        self._logs.check_open()
        specs, parts = self._logs.shards.take(names)
        try:
            for spec in specs:
                self._logs.drop(spec)
            for part in parts:
                self._logs.drop_range(part.shards, part.options.config)
                if self._due is not None:
                    self._due.drop(part.shards.topic_id, *part.shards.uids)
            self._state.remove_shards(names, specs, [part.shards for part in parts])
        except STORAGE_ERRORS as error:
            self._logs.shards.put_back(specs, parts)  # To be deleted again.
            if isinstance(error, OSError):
                raise storage_failure(names[0], error) from error
            raise

    def adopt(self, spec: ShardSpec) -> None:
        """Takes over a shard that the catalog gives to this node."""
        self._logs.check_open()
        self._logs.adopt(spec)

    def release(self, shard: str, epoch: int, refusal: NotLeader) -> None:
        """Forgets a shard that another node leads since; its bytes stay. `epoch` is the one under
        which it was this node's: under another one it stays."""
        self._logs.release(shard, epoch, refusal)

    def hold(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """Keeps these segments of a shard that another node leads, and no other ones."""
        self._logs.check_open()
        self._logs.hold(spec, metas)

    def discard(self, spec: ShardSpec) -> None:
        """Removes what is here of a shard that the catalog does not have any more."""
        self._logs.check_open()
        try:
            self._logs.discard(spec)
            self._state.forget_here([spec])
        except OSError as error:
            raise storage_failure(spec.name, error) from error

    def shards_beyond(self, shard_counts: Mapping[str, int]) -> list[str]:
        """The shards of topics, given by id, that have numbers from these counts on."""
        beyond = []
        for spec in self._logs.shards.singles():
            topic_id, _, seq = spec.name.rpartition("_")
            if topic_id in shard_counts and int(seq) >= shard_counts[topic_id]:
                beyond.append(spec.name)
        for topic_id, count in shard_counts.items():
            end = self._logs.shards.end_seq(topic_id)
            beyond += [f"{topic_id}_{seq}" for seq in range(count, end)]
        return beyond

    def apart(self, shards: Iterable[str]) -> list[str]:
        """Those of a topic's shards that are given options one by one, and one of all its ranges,
        which have them together."""
        found = []
        has_ranged = False
        for shard in shards:
            is_ranged = self._logs.shards.is_ranged(shard)
            if not (is_ranged and has_ranged):
                found.append(shard)
            has_ranged = has_ranged or is_ranged
        return found

    def reconfigure(self, shard: str, config: TopicConfig, revision: int | None = None) -> None:
        """Gives a shard other options, for what is written and judged from now on.

        `revision` is that of the topic's record they are from, None for a shard without a topic.
        Calls may come in any order: a shard keeps the options of the newest record.
        """
        if self._logs.shards.is_ranged(shard):
            self._reconfigure_ranges(shard, config, revision)
            return
        with self._logs.opening(self._logs.spec(shard)):
            before = self._logs.spec(shard)
            if revision is not None and revision <= before.revision:
                return
            if config.expire_header != before.config.expire_header:
                raise InvalidArgument("expire.header", "is fixed when a topic is made")
            spec = dataclasses.replace(before, config=config, revision=revision or 0)
            if revision is None:
                self._state.reconfigure(spec)
            self._logs.shards.put(spec)
            log = self._logs.get(shard)
            if log is not None:
                _change_options(log, spec)

    def _reconfigure_ranges(self, shard: str, config: TopicConfig, revision: int | None) -> None:
        """Gives other options to all shards of ranges of the shard's topic."""
        topic_id = shard.rpartition("_")[0]
        before = self._logs.spec(shard)
        if config.expire_header != before.config.expire_header:
            raise InvalidArgument("expire.header", "is fixed when a topic is made")
        if self._logs.shards.set_options(topic_id, config, revision):
            self._to_follow.add(topic_id)
        if topic_id in self._to_follow:
            for log in self._logs.alive_of(topic_id):
                spec = self._logs.shards.get(log.spec.name)
                if spec is not None:
                    _change_options(log, spec)
            if self._due is not None:
                self._due.follow(topic_id, config, lambda: self._with_data(topic_id))
            self._to_follow.discard(topic_id)

    def _with_data(self, topic_id: str) -> Iterator[int]:
        """The uids of a topic's shards of ranges that may have records."""
        for each in self._logs.shards.ranges_of(topic_id):
            yield from self._state.uids_with_data(each)


def _change_options(log: ShardLog, spec: ShardSpec) -> None:
    with log.lock:
        # A roll of a replicated log gives it another epoch, of which nothing else here knows.
        log.spec = dataclasses.replace(spec, epoch=log.spec.epoch)
        if log.refusal is None and spec.config.durability is not Durability.FSYNC:
            with suppress(OSError):  # Else the next roll or opening does.
                log.release_preallocation()
