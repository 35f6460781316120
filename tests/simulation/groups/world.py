"""One group, its store and a network, in simulated time and driven by one seed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Protocol

from firnmq.brokers.kafka.groups import Group, GroupConfig, GroupSnapshot, GroupState
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
from tests.simulation.groups.judge import Judge


class Sender(Protocol):
    """A client as the network sees it; `connection` changes when the old one is lost."""

    connection: int

    def disconnected(self) -> None: ...


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.config = GroupConfig(
            session_timeout_min_ms=1_000,
            initial_rebalance_delay_ms=self.random.choice([0, 0, 500, 3_000]),
            promise_ms=self.random.choice([2_000, 20_000]),
        )
        self.judge = Judge(self.config)
        self.is_store_broken = False
        self.saved: GroupSnapshot | None = None
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
        connection = sender.connection
        self._requests[token] = (request, sender, connection, on_reply)
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
        self.judge.before(group, event, self.now_ms)
        actions = group.handle(event, self.now_ms)
        self.judge.after(group, event, self.now_ms)
        for action in actions:
            if isinstance(action, Reply):
                self._reply(action)
            else:
                self._next_write = action
                self._start_write()
        if group.state is GroupState.DEAD:
            self.judge.forget(group, "deleted")
        if group.wake_ms is not None:
            lateness_ms = self.random.choice([0, 0, 1, 30])
            self.after(max(group.wake_ms - self.now_ms, 0) + lateness_ms, self._tick(group))

    def crash_node(self) -> None:
        """The node is gone at once, and is back with what the store has."""
        before = self.group
        self._run += 1
        self._write = self._next_write = None
        if self.saved is None:
            self.judge.forget(before, "never saved")
            self.group = self._new_group()
        else:
            self.group = Group.restore(
                "g",
                self.saved,
                self.now_ms,
                config=self.config,
                new_id=self._new_id,
                generation_gap=self.random.randrange(1_000, 100_000),
            )
            self.judge.restarted(before, self.group, self.now_ms)
        lost, self._requests = self._requests, {}
        for _, sender, connection, _ in lost.values():
            if sender.connection == connection:
                sender.disconnected()
        self.give(Tick())

    def _new_group(self) -> Group:
        return Group("g", config=self.config, new_id=self._new_id)

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

    def _tick(self, group: Group) -> Callable[[], None]:
        def tick() -> None:
            due = self.group.wake_ms
            if self.group is group and due is not None and due <= self.now_ms:
                self.give(Tick())

        return tick

    def _reply(self, action: Reply) -> None:
        entry = self._requests.pop(action.token, None)
        if entry is None:
            return
        request, sender, connection, on_reply = entry
        self.judge.replied(self.group, action, request, self.now_ms)

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
        run = self._run
        group = self.group
        broken = self.is_store_broken

        def finish() -> None:
            if run != self._run:
                return  # The node has crashed; perhaps the write was carried out, perhaps not.
            # A failed write may have been carried out all the same.
            if not broken or self.random.random() < 0.3:
                self.saved = write.snapshot if isinstance(write, Persist) else None
            self._write = None
            event = WriteFailed(seq=write.seq) if broken else WriteDone(seq=write.seq)
            if self.group is group and group.state is not GroupState.DEAD:
                self.give(event)
            self._start_write()

        self.after(self.random.choice([0, 1, 5, 200, 2_000]), finish)
