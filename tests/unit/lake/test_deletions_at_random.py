"""Appends, deletions, retention, syncs, compactions and crashes in any order: what is deleted is
never shown, and everything else is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from firnmq.lake.jobs.convert import Conversion, Task
from firnmq.lake.jobs.sync import TopicSync
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten
from firnmq.lake.tables.maintain import compact, expire
from tests.conformance.lab import Lab
from tests.unit.lake.lake_lab import LakeTopic
from tests.unit.lake.sync_lab import HereRunner, LabSource, in_table, kept_count, seen, write

STEPS = 40
KEYS = 5


class Killed(BaseException):
    """Where a sync ends that is killed."""


class Moment:
    """When to do something in the middle of a sync: it counts down."""

    def __init__(self) -> None:
        self.left = 0
        self.act: Callable[[], None] = lambda: None

    def pass_by(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


class Runner(HereRunner):
    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def run(self, tasks: Sequence[Task]) -> list[Conversion]:
        self._moment.pass_by()
        made = super().run(tasks)
        self._moment.pass_by()
        return made

    def rewrite(self, work: Sequence[Rewrite]) -> list[Rewritten]:
        self._moment.pass_by()
        made = super().rewrite(work)
        self._moment.pass_by()
        return made


class Source(LabSource):
    def __init__(self, topic: LakeTopic, path: Path, moment: Moment) -> None:
        super().__init__(topic, path)
        self._moment = moment

    def report(
        self, topic_id: str, ends: Mapping[int, int], applied: Mapping[int, str] | None = None
    ) -> None:
        self._moment.pass_by()
        super().report(topic_id, ends, applied)
        self._moment.pass_by()


class World:
    """A topic, its table, and what of it should be seen."""

    def __init__(self, lab: Lab, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.moment = Moment()
        self.lab = lab
        self.source = Source(LakeTopic(lab, {"segment.bytes": 1024}), path, self.moment)
        self.shard = self.source.topic.shard
        self.deleted: set[int] = set()
        """And the offsets of the deletions' entries, which hold no record."""
        self.table_end = 0
        self.converted: set[int] = set()
        self._sync = self._new_sync()

    def _new_sync(self) -> TopicSync:
        return TopicSync(source=self.source, runner=Runner(self.moment), options={})

    def close(self) -> None:
        self._sync.close()

    # What may happen ------------------------------------------------------------------------------

    def append(self) -> None:
        write(self.source, self.random.randint(1, 15))

    def delete_offset(self) -> None:
        offset = self.random.randrange(self.shard.end)
        end = self.shard.end
        self.shard.delete(offset)
        self.deleted |= {offset, *range(end, self.shard.end)}

    def delete_key(self) -> None:
        number = self.random.randrange(KEYS)
        end = self.shard.end
        self.shard.delete_key(b"k%d" % number)
        self.deleted |= {at for at in range(end) if at % KEYS == number}
        self.deleted |= set(range(end, self.shard.end))

    def move_start(self) -> None:
        """Only past what is converted, but for a little now and then: that is missing for good."""
        slack = self.random.choice((0, 0, 0, 3))
        end = min(self.table_end + slack, self.shard.end)
        if end > self.shard.start:
            self.shard.delete_before(self.random.randint(self.shard.start, end))

    def sync(self) -> None:
        self.moment.left = 0
        self._run()

    def sync_killed(self) -> None:
        self.moment.left, self.moment.act = self.random.randint(1, 6), self._die
        self._run()

    def sync_with_deletion(self) -> None:
        """Something is deleted, and dropped by the log, in the middle of a sync."""

        def act() -> None:
            self.random.choice((self.delete_offset, self.delete_key))()
            self.shard.delete_before(max(self.shard.start, self.table_end))

        self.moment.left, self.moment.act = self.random.randint(1, 6), act
        self._run()

    def compact(self) -> None:
        compact(self._sync.table, HereRunner().rewrite)

    def expire(self) -> None:
        expire(self._sync.table, older_than_ms=0, grace_ms=0)

    def crash(self) -> None:
        self.lab.crash()

    def _die(self) -> None:
        raise Killed

    def _run(self) -> None:
        start = self.shard.start
        try:
            self._sync.run()
        except Killed:
            self._sync.close()
            self._sync = self._new_sync()
            self._sync._next_plan()
        finally:
            self.moment.left = 0
        end = self._sync.table.reload().ends().get(0, 0)
        self.converted |= {at for at in range(self.table_end, end) if at >= start}
        self.table_end = end

    # What should be seen --------------------------------------------------------------------------

    def check(self) -> None:
        log = range(max(self.shard.start, self.table_end), self.shard.end)
        assert seen(self.source) == sorted((self.converted | set(log)) - self.deleted)

    def check_settled(self) -> None:
        self.sync()
        self.check()
        assert in_table(self._sync) == sorted(self.converted - self.deleted)
        assert kept_count(self.source) == 0
        assert self.lab.store.verifier.verify(self.shard.name).findings == ()


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order(lab: Lab, tmp_path: Path, seed: int) -> None:
    world = World(lab, tmp_path, seed)
    acts = [
        *(world.append, world.append, world.delete_offset, world.delete_offset, world.delete_key),
        *(world.move_start, world.move_start, world.sync, world.sync_killed, world.sync_killed),
        *(world.sync_with_deletion, world.compact, world.expire, world.crash),
    ]
    world.append()
    world.sync()
    for _ in range(STEPS):
        act = world.random.choice(acts)
        act()
        world.check()
    world.check_settled()
    world.close()
