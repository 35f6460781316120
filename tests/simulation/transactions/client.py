"""A transactional producer in the simulation: it follows the protocol and never knows enough."""

from __future__ import annotations

from dataclasses import dataclass, field

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions import (
    AddGroupRequest,
    AddPartitionsRequest,
    CommitOffsetsRequest,
    EndRequest,
    InitRequest,
)
from firnmq.brokers.kafka.transactions.messages import ProducerRequest, Reply
from tests.simulation.transactions.world import World

TIMEOUT_MS = 5_000
PATIENCE_STEPS = 30
"""After so many steps without an answer a request is sent again."""
GIVING_UP = 0.15
RETRIABLE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass
class Attempt:
    """One transaction as its client remembers it."""

    number: int
    wants_commit: bool = False
    asked_for_commit: bool = False
    is_confirmed: bool = False
    """The client was told that it ended as it wanted."""
    written: set[str] = field(default_factory=set)
    has_offsets: bool = False


class Client:
    """Goes through transactions one after the other until it is fenced."""

    def __init__(self, world: World, name: str, attempts: list[Attempt]) -> None:
        self.world = world
        self.name = name
        self.group = f"group-{name}"
        self.attempts = attempts
        """Of all clients; the index is the attempt's number."""
        self.identity: tuple[int, int] | None = None
        self.is_fenced = False
        self.attempt: Attempt | None = None
        self._asked: ProducerRequest | InitRequest | None = None
        self._ask_number = 0
        self._waited = 0
        self._plan: list[str] = []
        self._needs_epoch = False

    def act(self) -> None:
        """One thing, as chance has it."""
        if self.is_fenced:
            return
        if self._asked is not None:
            self._waited += 1
            if self._waited > PATIENCE_STEPS:
                self._send(self._asked)
            return
        if self.identity is None:
            self._send(InitRequest(timeout_ms=TIMEOUT_MS))
        elif self.attempt is None:
            self._begin()
        else:
            self._go_on(self.attempt)

    def _begin(self) -> None:
        random = self.world.random
        self.attempt = Attempt(len(self.attempts), wants_commit=random.random() < 0.6)
        self.attempts.append(self.attempt)
        shards = random.sample(sorted(self.world.shards), random.randint(1, 3))
        self._plan = ["add " + " ".join(shards)]
        self._plan += [f"write {shard}" for shard in shards for _ in range(random.randint(0, 2))]
        if random.random() < 0.5:
            self._plan += ["group", "offsets"]
        self._plan.append("end")

    def _go_on(self, attempt: Attempt) -> None:
        assert self.identity is not None
        producer_id, epoch = self.identity
        word, *names = self._plan[0].split()
        request: ProducerRequest
        if word == "write":
            self._write(attempt, names[0])
            return
        if word == "add":
            partitions = tuple(each for each in self.world.partitions if each.shard in names)
            request = AddPartitionsRequest(
                producer_id=producer_id, epoch=epoch, partitions=partitions
            )
        elif word == "group":
            request = AddGroupRequest(producer_id=producer_id, epoch=epoch, group=self.group)
        elif word == "offsets":
            attempt.has_offsets = True
            offsets = {"input": CommittedOffset(offset=attempt.number, committed_ms=0)}
            request = CommitOffsetsRequest(
                producer_id=producer_id, epoch=epoch, group=self.group, offsets=offsets
            )
        else:
            attempt.asked_for_commit = attempt.wants_commit
            request = EndRequest(
                producer_id=producer_id, epoch=epoch, is_commit=attempt.wants_commit
            )
        self._send(request)

    def _write(self, attempt: Attempt, shard: str) -> None:
        assert self.identity is not None
        if self.world.random.random() < self.world.trouble / 3:
            self._write_late(attempt, shard)
            return
        error = self.world.write(self.name, *self.identity, shard, attempt.number)
        if error is ErrorCode.NONE:
            attempt.written.add(shard)
            self._plan.pop(0)
        else:
            self.is_fenced = True

    def _write_late(self, attempt: Attempt, shard: str) -> None:
        """The batch is held up on its way and the client gives the transaction up."""
        assert self.identity is not None
        identity = self.identity

        def arrive() -> None:
            if self.world.write(self.name, *identity, shard, attempt.number) is ErrorCode.NONE:
                attempt.written.add(shard)

        self.world.later(arrive)
        attempt.wants_commit = False
        self._plan = ["end"]
        self._needs_epoch = True

    def _send(self, request: ProducerRequest | InitRequest) -> None:
        self._asked = request
        self._waited = 0
        self._ask_number += 1
        number = self._ask_number
        self.world.ask(self.name, request, lambda reply: self._answered(number, reply))

    def _answered(self, number: int, reply: Reply) -> None:
        if number != self._ask_number or self.is_fenced:
            return  # The answer to a request that was given up.
        request, self._asked = self._asked, None
        if reply.error in RETRIABLE:
            # Some lose their patience, and a newer instance takes over.
            self.is_fenced = self.world.random.random() < GIVING_UP
            return
        if reply.error is not ErrorCode.NONE:
            self.is_fenced = True
        elif isinstance(request, InitRequest):
            self.identity = reply.producer_id, reply.epoch
        elif isinstance(request, EndRequest):
            assert self.attempt is not None
            self.attempt.is_confirmed = True
            self.attempt = None
            if self._needs_epoch:  # What is still on its way must not get into the next one.
                self._needs_epoch = False
                self.identity = None
        else:
            self._plan.pop(0)
