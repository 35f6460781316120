"""Clients: they change topics and append records through any node, and know what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from firnmq.config import TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines import Acks
from firnmq.errors import (
    AlreadyExists,
    CreationTimedOut,
    FirnError,
    NodeUnavailable,
    NotLeader,
    OutOfOrderSequence,
    ShardNotFound,
    TopicNotFound,
)
from firnmq.record import NewRecord
from tests.simulation.nodes.judge import require

if TYPE_CHECKING:
    from tests.simulation.nodes.node import NodeProcess
    from tests.simulation.nodes.world import World

KEPT = "kept"
KEPT_SHARDS = 4
_NAMES = ("a", "b")
_GIVE_UP_MS = 40_000.0
_PAUSE_MS = (10.0, 300.0)


class Unanswered(Exception):
    """The node ended, or did not answer in time: what became of the call is unknown."""


class Client:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_done = False

    def run(self) -> None:
        while not self.world.is_calm:
            self.world.tasks.sleep(self.world.rng.uniform(*_PAUSE_MS))
            self.act()
        self.finish()
        self.is_done = True

    def act(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """What is done once the faults have ended."""

    def ask(self, call: Callable[[NodeProcess], Any], node: NodeProcess | None = None) -> Any:
        """What any node answers."""
        world, tasks = self.world, self.world.tasks
        if node is None:
            while not (nodes := world.serving()):
                tasks.sleep(100.0)
            node = world.rng.choice(nodes)
        asked = node
        found: list[Any] = []
        client = tasks.current

        def carry_out() -> None:
            try:
                found.append(call(asked))
            except FirnError as error:
                found.append(error)
            tasks.wake(client)

        tasks.spawn(f"{asked.name} for {self.name}", asked.process, carry_out)
        end_ms = tasks.now_ms + _GIVE_UP_MS
        while not found:
            if asked.process.is_dead or tasks.now_ms >= end_ms:
                raise Unanswered
            tasks.wait(200.0)
        if isinstance(found[0], FirnError):
            raise found[0]
        return found[0]


class Change:
    """A call that changes a topic."""

    def __init__(self, kind: str, name: str, count: int, began_ms: float) -> None:
        self.kind = kind
        self.name = name
        self.count = count
        self.began_ms = began_ms
        self.ended_ms = float("inf")
        self.outcome = "unknown"
        self.topic_id = ""


_NOT_DONE = (AlreadyExists, CreationTimedOut, NodeUnavailable, NotLeader, TopicNotFound)
"""After these a topic that was to be made is not there."""


class Changer(Client):
    """Makes, grows and deletes topics."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"changer {number}")
        self.changes: list[Change] = []

    @property
    def made(self) -> int:
        return sum(each.kind == "create" and each.outcome == "done" for each in self.changes)

    @property
    def deleted(self) -> int:
        return sum(each.kind == "delete" and each.outcome == "done" for each in self.changes)

    def make_kept(self) -> None:
        """The topic that is there throughout."""
        change = Change("create", KEPT, KEPT_SHARDS, 0.0)
        while change.outcome != "done":
            self._carry_out(change)
            if change.outcome != "done":
                self.world.tasks.sleep(500.0)
        self.changes.append(change)

    def act(self) -> None:
        rng = self.world.rng
        kind = rng.choices(("create", "grow", "delete"), (5, 2, 3))[0]
        count = rng.randint(1, 9)
        change = Change(kind, rng.choice(_NAMES), count, self.world.tasks.now_ms)
        self.changes.append(change)
        self._carry_out(change)

    def finish(self) -> None:
        """Once all is well, changes succeed without a hand."""
        world = self.world
        world.tasks.sleep(15_000.0)
        if self.name != "changer 0":
            return
        for name in _NAMES:
            for kind in ("delete", "create"):
                change = Change(kind, name, 3, world.tasks.now_ms)
                self.changes.append(change)
                self._carry_out(change)
                missing = kind == "delete" and change.outcome == "TopicNotFound"
                require(change.outcome == "done" or missing, f"{kind} {name}: {change.outcome}")

    def _carry_out(self, change: Change) -> None:
        def call(node: NodeProcess) -> None:
            manager = node.manager
            if change.kind == "create":
                work = manager.create_topic(change.name, change.count, TopicConfig())
                try:
                    run_blocking(work)
                finally:
                    made = self.world.topic_ids.get(self.world.tasks.current, "")
                    change.topic_id = made
            elif change.kind == "grow":
                run_blocking(manager.grow_topic(change.name, change.count))
            else:
                run_blocking(manager.delete_topic(change.name))

        try:
            self.ask(call)
        except Unanswered:
            change.outcome = "unknown"
        except FirnError as error:
            is_not_done = isinstance(error, _NOT_DONE)
            change.outcome = type(error).__name__ if is_not_done else "unknown"
            self.world.say(f"{self.name}: {change.kind} {change.name}: {error}")
        else:
            change.outcome = "done"
        if change.outcome != "unknown":
            change.ended_ms = self.world.tasks.now_ms

    def check(self) -> None:
        """What was said to be done is done, unless another change came later."""
        all_changes = [each for changer in self.world.changers for each in changer.changes]
        topics = {topic.name: topic for topic in self.world.running[1].catalog.topics()}
        ids = {topic.topic_id: topic for topic in topics.values()}
        for change in self.changes:
            later = [
                each
                for each in all_changes
                if each is not change
                and each.name == change.name
                and each.kind == "delete"
                and each.ended_ms >= change.began_ms
                and each.outcome in ("done", "unknown")
            ]
            if change.kind == "create" and change.outcome == "done" and not later:
                require(change.topic_id in ids, f"{change.name} was made and is gone")
                require(ids[change.topic_id].shard_count >= change.count, "shards are missing")
            elif change.kind == "create" and change.outcome in _REFUSED and change.topic_id:
                require(change.topic_id not in ids, f"{change.name}: refused, and there")


_REFUSED = {each.__name__ for each in _NOT_DONE}


class Appender(Client):
    """What every appending client checks."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        """Value → shard and offset."""
        self.failed: set[bytes] = set()
        self.sent: list[bytes] = []
        self._count = 0

    def new_value(self) -> bytes:
        self._count += 1
        value = f"{self.name}/{self._count}".encode()
        self.sent.append(value)
        return value

    def check(self) -> None:
        topic = self.world.running[1].catalog.get(KEPT)
        logs = [self._values(topic.shard_name(seq)) for seq in range(topic.shard_count)]
        found = Counter(value for values in logs for value in values)
        for value, (seq, offset) in self.acknowledged.items():
            at = logs[seq][offset] if offset < len(logs[seq]) else None
            require(at == value, f"{value!r} is not at {seq}/{offset}: {at!r}")
        for value in self.sent:
            count = found[value]
            if value in self.failed:
                require(count == 0, f"{value!r} has failed and is there")
            require(count <= 1, f"{value!r} is there {count} times")

    def _values(self, shard: str) -> list[bytes]:
        found = [disk[shard].values for disk in self.world.disks.values() if shard in disk]
        require(len(found) <= 1, f"{shard} is on several nodes")
        return found[0] if found else []


class IdempotentProducer(Appender):
    """Appends in order to one shard, as an idempotent Kafka producer does: again and again with the
    same number until it is acknowledged."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"producer {number}")
        self._shard = number % KEPT_SHARDS
        self._producer_id: int | None = None
        self._sequence = 0
        self._orders: list[list[bytes]] = []
        """What was sent under each producer id."""

    def act(self) -> None:
        if self._producer_id is None:
            try:
                self._producer_id = self.ask(lambda node: node.producer_ids.new())
            except (Unanswered, FirnError):
                return
            self.world.judge.given(self._producer_id)
            self._sequence = 0
            self._orders.append([])
        value = self.new_value()
        self._orders[-1].append(value)
        self._append(value)

    def finish(self) -> None:
        for _ in range(3):
            self.act()

    def _append(self, value: bytes) -> None:
        world = self.world
        batch = b"%d %d %s" % (self._producer_id, self._sequence, value)
        may_be_there = False
        while True:
            deadline_s = world.tasks.now_ms / 1000 + 3.0

            def call(node: NodeProcess, deadline_s: float = deadline_s) -> int:
                shard = node.catalog.get(KEPT).shard_name(self._shard)

                async def submit() -> int:
                    waiting = await node.driver.submit(shard, batch, Acks.ALL, deadline_s)
                    return (await waiting).base_offset

                return run_blocking(submit())

            try:
                offset = self.ask(call)
            except (NodeUnavailable, NotLeader, TopicNotFound, ShardNotFound):
                pass
            except OutOfOrderSequence as error:
                require(may_be_there, f"{self.name}: {error}")
                raise
            except (Unanswered, FirnError):
                may_be_there = True
            else:
                self.acknowledged[value] = self._shard, offset
                self._sequence += 1
                return
            if not world.is_calm and world.rng.random() < 0.05:
                if not may_be_there:
                    self.failed.add(value)
                self._producer_id = None  # It gives up, and begins again with another id.
                return
            world.tasks.sleep(world.rng.uniform(10.0, 400.0))

    def check(self) -> None:
        super().check()
        shard = self.world.running[1].catalog.get(KEPT).shard_name(self._shard)
        stored = self._values(shard)
        for sent in self._orders:
            mine = [value for value in stored if value in set(sent)]
            require(mine == sent[: len(mine)], f"{self.name}: of {sent} there is {mine}")
        if self.is_done:
            require(self.acknowledged != {}, f"{self.name} stored nothing")


class Writer(Appender):
    """Appends without numbers: what is not acknowledged is not sent again."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"writer {number}")

    def act(self) -> None:
        value = self.new_value()
        seq = self.world.rng.randrange(KEPT_SHARDS)

        def call(node: NodeProcess) -> tuple[int, int]:
            (written,) = run_blocking(node.manager.write(KEPT, [NewRecord(value=value)], seq))
            return written.shard, written.base_offset

        try:
            self.acknowledged[value] = self.ask(call)
        except (NodeUnavailable, NotLeader, TopicNotFound, ShardNotFound):
            self.failed.add(value)
        except (Unanswered, FirnError):
            pass
        self._find_coordinator()

    def _find_coordinator(self) -> None:
        name = f"group {self.world.rng.randrange(100)}"
        try:
            self.ask(lambda node: node.cluster.coordinators.find(name))
        except (Unanswered, FirnError):
            pass
