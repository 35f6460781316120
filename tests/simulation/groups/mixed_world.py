"""One group of either kind, its store, topics and a network, in simulated time, from one seed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Protocol

from firnmq.brokers.kafka.groups import (
    Group,
    GroupConfig,
    GroupState,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.brokers.kafka.groups.consumer.machine import ConsumerGroup
from firnmq.brokers.kafka.groups.coordinated import CoordinatedGroup
from firnmq.brokers.kafka.groups.messages import (
    Abandoned,
    Asked,
    Erase,
    GroupEvent,
    GroupReply,
    GroupRequest,
    Persist,
    Reply,
    Tick,
    Token,
    WriteDone,
    WriteFailed,
)
from tests.unit.brokers.kafka.groups import consumer_invariants, invariants
from tests.unit.brokers.kafka.groups.fake_topics import FakeTopics


class Sender(Protocol):
    """A client as the network sees it; `connection` changes when the old one is lost."""

    connection: int

    def disconnected(self) -> None: ...


class Reader(Sender, Protocol):
    """A client that reads partitions."""

    member_id: str
    epoch: int
    reading: frozenset[tuple[str, int]]


class MixedWorld:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.config = GroupConfig(
            session_timeout_min_ms=1_000,
            initial_rebalance_delay_ms=self.random.choice([0, 500]),
            consumer_session_timeout_ms=self.random.choice([3_000, 10_000]),
            consumer_heartbeat_interval_ms=500,
        )
        self.topics = FakeTopics(a=5, b=3)
        self.readers: list[Reader] = []
        self.is_store_broken = False
        self.saved: bytes | None = None
        self.conversion_count = 0
        self._order = itertools.count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)
        self._requests: dict[Token, tuple[GroupRequest, Sender, int, Callable[..., None]]] = {}
        self._write: Persist | Erase | None = None
        self._next_write: Persist | Erase | None = None
        self._run = 0
        self.group = self._new_group()

    # Time.

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, next(self._order), act))

    def run_until(self, end_ms: int) -> None:
        while self._agenda and self._agenda[0][0] <= end_ms:
            self.now_ms, _, act = heapq.heappop(self._agenda)
            act()
        self.now_ms = end_ms

    # The network. A lost connection loses the answers of everything sent over it.

    def send(
        self, sender: Sender, request: GroupRequest, on_reply: Callable[[GroupReply], None]
    ) -> None:
        token = Token(next(self._tokens))
        self._requests[token] = (request, sender, sender.connection, on_reply)
        self.after(self._delay_ms(), lambda: self._arrive(token))

    def hang_up(self, sender: Sender, connection: int) -> None:
        """The node notices a lost connection, sooner or later."""

        def notice() -> None:
            for token, entry in list(self._requests.items()):
                if entry[1] is sender and entry[2] == connection:
                    del self._requests[token]
                    self.give(Abandoned(token=token))

        self.after(self.random.choice([0, 50, 3_000, 30_000]), notice)

    def _arrive(self, token: Token) -> None:
        entry = self._requests.get(token)
        if entry is None:
            return
        if self.group.state is GroupState.DEAD:
            self.group = self._new_group()
        self.give(Asked(token=token, request=entry[0]))

    def _delay_ms(self) -> int:
        return self.random.choice([0, 1, 1, 2, 5, 20, 100])

    # The node.

    def give(self, event: GroupEvent) -> None:
        group = self.group
        kind = type(group.kind)
        actions = group.handle(event, self.now_ms)
        self.conversion_count += type(group.kind) is not kind
        self.check()
        for action in actions:
            if isinstance(action, Reply):
                self._reply(action)
            else:
                self._next_write = action
                self._start_write()
        if group.wake_ms is not None:
            lateness_ms = self.random.choice([0, 0, 1, 30])
            self.after(max(group.wake_ms - self.now_ms, 0) + lateness_ms, self._tick(group))

    def check(self) -> None:
        kind = self.group.kind
        if isinstance(kind, Group):
            invariants.check(kind)
            return
        consumer_invariants.check(kind.core)
        members = kind.core.members.by_id
        holders: dict[tuple[str, int], str] = {}
        for reader in self.readers:
            member = members.get(reader.member_id)
            if member is None or member.epoch < reader.epoch or not reader.reading:
                continue  # It will hear that it is not a member any more, or waits to be one.
            assert reader.reading <= member.holds, "a member reads what it was not given"
            for partition in reader.reading:
                other = holders.setdefault(partition, reader.member_id)
                assert other == reader.member_id, f"two members read {partition}"

    def crash_node(self) -> None:
        """The node is gone at once, and is back with what the store has."""
        self._run += 1
        self._write = self._next_write = None
        if self.saved is None:
            self.group = self._new_group()
        else:
            self.group = CoordinatedGroup.restore(
                "g",
                decode_snapshot(self.saved),
                self.now_ms,
                config=self.config,
                new_id=self._new_id,
                topics=self.topics,
                generation_gap=self.random.randrange(1_000, 100_000),
            )
        lost, self._requests = self._requests, {}
        for _, sender, connection, _ in lost.values():
            if sender.connection == connection:
                sender.disconnected()
        self.give(Tick())

    @property
    def is_consumer(self) -> bool:
        return isinstance(self.group.kind, ConsumerGroup)

    def _new_group(self) -> CoordinatedGroup:
        return CoordinatedGroup("g", config=self.config, new_id=self._new_id, topics=self.topics)

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

    def _tick(self, group: CoordinatedGroup) -> Callable[[], None]:
        def tick() -> None:
            due = self.group.wake_ms
            if self.group is group and due is not None and due <= self.now_ms:
                self.give(Tick())

        return tick

    def _reply(self, action: Reply) -> None:
        entry = self._requests.pop(action.token, None)
        if entry is None:
            return
        _, sender, connection, on_reply = entry

        def receive() -> None:
            if sender.connection == connection:
                on_reply(action.body)

        self.after(self._delay_ms(), receive)

    # The store: one write at a time, the newest of those that wait.

    def _start_write(self) -> None:
        if self._write is not None or self._next_write is None:
            return
        write, self._next_write = self._next_write, None
        self._write = write
        run, group, broken = self._run, self.group, self.is_store_broken
        saved = encode_snapshot(write.snapshot) if isinstance(write, Persist) else None

        def finish() -> None:
            if run != self._run:
                return  # The node has crashed; perhaps the write was carried out, perhaps not.
            # A failed write may have been carried out all the same.
            if not broken or self.random.random() < 0.3:
                self.saved = saved
            self._write = None
            event = WriteFailed(seq=write.seq) if broken else WriteDone(seq=write.seq)
            if self.group is group and group.state is not GroupState.DEAD:
                self.give(event)
            self._start_write()

        self.after(self.random.choice([0, 1, 5, 200, 2_000]), finish)
