"""One process of a node, made of the real parts in the order in which a node makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firnmq.adapter import StorageDriverManager, TopicCatalog
from firnmq.adapter.forwarding import ClusterDriver, ShardFollower, ShardService
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.clock import Clock
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.nodes.registration import Registration
from firnmq.config import StorageType
from firnmq.disk import run_blocking
from firnmq.errors import FirnError
from firnmq.ids import TimestampMs
from firnmq.meta import Compare, Entry, Event, MetaCache, MetaShards, TxnConflict
from firnmq.meta.nodes import take_incarnation
from firnmq.meta.records import MemberRecord, NodeRecord, encode, member_key
from tests.simulation.nodes.engine import SimEngine
from tests.simulation.nodes.store import SimStore
from tests.simulation.nodes.tasks import Process, Tasks

if TYPE_CHECKING:
    from tests.simulation.nodes.world import World

SEGMENT = StorageType.SEGMENT.value
_UPKEEP_MS = (500.0, 3_000.0)
_SKEW_MS_MAX = 3_600_000


class SimClock(Clock):
    """The clock of a machine, which may be wrong by an hour."""

    def __init__(self, tasks: Tasks, skew_ms: int) -> None:
        super().__init__()
        self._tasks = tasks
        self._skew_ms = skew_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(1_700_000_000_000 + int(self._tasks.now_ms) + self._skew_ms)

    def steady_ms(self) -> int:
        return int(self._tasks.now_ms)


class _Offsets:
    """Offsets of groups are not part of this simulation."""

    def forget_shards(self, shards: list[str]) -> None:
        pass


class NodeProcess:
    """A process from its start to its end."""

    def __init__(self, world: World, node: int, number: int) -> None:
        self.node = node
        self.name = f"node {node}.{number}"
        self.process = Process(self.name)
        self.lane_due_ms: dict[Any, float] = {}
        self.is_serving = False
        self.heard: dict[str, Entry] = {}
        """What a listener makes of the changes that it is told."""
        self._world = world
        self._number = number

    def run(self) -> None:
        """The process's first thread. A start that fails ends the process, as the real one."""
        world = self._world
        try:
            self._start()
        except (FirnError, TxnConflict) as error:
            world.say(f"{self.name} does not start: {error}")
            world.kill(self)
            return
        self.is_serving = True
        world.say(f"{self.name} serves as incarnation {self.identity.incarnation}")
        while True:
            world.tasks.sleep(world.rng.uniform(*_UPKEEP_MS))
            try:
                run_blocking(self.manager.clean_up())
                self.manager.follow_topics()
            except FirnError as error:
                world.say(f"{self.name} upkeep: {error}")

    def _start(self) -> None:
        world = self._world
        tasks = world.tasks
        store = SimStore(world.state, tasks, world.reach[self.node], self.process)
        clock = SimClock(tasks, world.skews_ms[self.node])
        if store.get(member_key(self.node)) is None:
            member = MemberRecord(node=self.node, directory_id="", joined_ms=clock.now_ms())
            store.txn(
                [Compare.absent(member_key(self.node))], {member_key(self.node): encode(member)}
            )
        self.identity = take_incarnation(store, self.node)
        self.cache = MetaCache(store)
        self.cache.listen("", self._hear)
        self.catalog = TopicCatalog(store, self.cache)
        self.shards = MetaShards(store, self.cache, self.identity, clock, is_shared=True)
        world.starting = self
        self.cluster = Cluster(store, self.cache, self.shards, self.identity, b"", clock=clock)
        disk = world.disks[self.node]
        specs = self.shards.shards()
        self.engine = SimEngine(self.node, disk, specs, tasks, self.process, world.judge)
        engine: Any = self.engine
        self.driver = ClusterDriver(
            engine,
            engine,
            self.cluster,
            self.catalog,
            None,
            clock,  # type: ignore[arg-type]
        )
        self.manager = StorageDriverManager(
            self.catalog,
            _Offsets(),  # type: ignore[arg-type]
            clock,
            {SEGMENT: lambda: self.driver},
            cluster_claim=self.cluster.claim_topic,
        )
        self.follower = ShardFollower(
            self.node, self.cache, self.catalog, {SEGMENT: engine}, lambda shards: None
        )
        self.service = ShardService(
            self.cluster, self.catalog, {SEGMENT: engine}, self.follower, lambda timeout_s: True
        )
        address = f"node{self.node}:{self._number + 1}"
        world.network.listening[f"node{self.node}", self._number + 1] = self
        self.producer_ids = ProducerIds(None, store)  # type: ignore[arg-type]
        self.cluster.registration = Registration(
            store,
            self.identity,
            NodeRecord(
                node=self.node,
                incarnation=self.identity.incarnation,
                registered_ms=clock.now_ms(),
                peers=address,
            ),
            self._superseded,
            self.cluster.renewed,
        )
        self.cluster.catch_up()

    def _superseded(self) -> None:
        self._world.kill(self)

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            if event.entry is None:
                self.heard.pop(event.key, None)
            else:
                self.heard[event.key] = event.entry
