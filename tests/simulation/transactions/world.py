"""A node's transactions without a node: its store, its shards, and everything that can go wrong.

What the machine asks for is cut into the smallest steps a crash can come between: a save that has
happened but was not reported, one marker written and the next not. The steps wait in a bag, and
chance picks which comes next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions import (
    Transaction,
    TransactionConfig,
    TransactionPartition,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.brokers.kafka.transactions.messages import (
    Asked,
    Erase,
    InitRequest,
    MarkersWritten,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Tick,
    Token,
    TransactionAction,
    TransactionEvent,
    TransactionRequest,
    WriteMarkers,
)

CONFIG = TransactionConfig(id_expiration_ms=200_000)
OnReply = Callable[[Reply], None]


@dataclass
class ModelShard:
    """A log of values and markers that fences as a real one does."""

    entries: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Kind, producer id, epoch, attempt."""
    epochs: dict[int, int] = field(default_factory=dict)

    def write(self, producer_id: int, epoch: int, attempt: int) -> bool:
        if epoch < self.epochs.get(producer_id, 0):
            return False
        self.epochs[producer_id] = epoch
        self.entries.append(("value", producer_id, epoch, attempt))
        return True

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        assert epoch >= self.epochs.get(producer_id, 0), "a marker is never older than the data"
        self.epochs[producer_id] = epoch
        self.entries.append(("commit" if is_commit else "abort", producer_id, epoch, -1))

    def outcome(self) -> tuple[set[int], set[int], set[int]]:
        """Attempts that are committed, aborted, and still open."""
        by_outcome: dict[str, set[int]] = {"commit": set(), "abort": set()}
        open_attempts: dict[int, set[int]] = {}
        for kind, producer_id, _, attempt in self.entries:
            if kind == "value":
                open_attempts.setdefault(producer_id, set()).add(attempt)
            else:
                by_outcome[kind] |= open_attempts.pop(producer_id, set())
        still_open = set().union(*open_attempts.values()) if open_attempts else set()
        return by_outcome["commit"], by_outcome["abort"], still_open


class World:
    """One node with its durable things, which stay, and the rest, which a crash takes."""

    def __init__(self, seed: int, shard_count: int = 3) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000_000
        self.shards = {f"shard_{number}": ModelShard() for number in range(shard_count)}
        self.saved: dict[str, bytes] = {}
        self.group_offsets: dict[tuple[str, str], CommittedOffset] = {}
        self.offset_history: list[tuple[str, int]] = []
        """Every attempt whose offsets became a group's own, in order."""
        self.producer_ids = iter(range(1, 1_000_000))
        self.trouble = self.random.choice([0.02, 0.1, 0.4])
        """How often a save or a marker fails."""
        self.crash_count = 0
        self._machines: dict[str, Transaction] = {}
        self._steps: list[Callable[[], None]] = []
        self._delayed: list[Callable[[], None]] = []
        self._waiting: dict[Token, OnReply] = {}
        self._tokens = iter(range(1, 1_000_000_000))

    @property
    def partitions(self) -> tuple[TransactionPartition, ...]:
        return tuple(TransactionPartition(topic="t", shard=name) for name in self.shards)

    # What clients do ----------------------------------------------------------------------------

    def ask(self, name: str, request: TransactionRequest, on_reply: OnReply) -> None:
        """Sends a request; it or its answer may never arrive."""
        if self.random.random() < self.trouble / 4:
            return
        machine = self._machines.get(name)
        if machine is None:
            machine = self._machines[name] = Transaction(CONFIG, None)
        if isinstance(request, InitRequest) and machine.needs_producer_id:
            request = InitRequest(
                timeout_ms=request.timeout_ms,
                producer_id=request.producer_id,
                epoch=request.epoch,
                spare_producer_id=next(self.producer_ids),
            )
        token = Token(next(self._tokens))
        self._waiting[token] = on_reply
        self._give(name, machine, Asked(token=token, request=request))

    def write(
        self, name: str, producer_id: int, epoch: int, shard: str, attempt: int
    ) -> ErrorCode | None:
        """A produce request: judged and queued in one step, as the driver makes sure."""
        machine = self._machines.get(name)
        if machine is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        error = machine.judge_append(producer_id, epoch, shard)
        if error is not ErrorCode.NONE:
            return error
        is_written = self.shards[shard].write(producer_id, epoch, attempt)
        return ErrorCode.NONE if is_written else ErrorCode.INVALID_PRODUCER_EPOCH

    def later(self, arrive: Callable[[], None]) -> None:
        """Something on the network, which a crash of the node does not touch."""
        self._delayed.append(arrive)

    # Steps --------------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        return not self._steps and not self._delayed

    def step(self) -> None:
        if self._delayed and self.random.random() < 0.1:
            self._delayed.pop(0)()
        if self._steps:
            number = self.random.randrange(len(self._steps))
            self._steps.pop(number)()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for name, machine in list(self._machines.items()):
            self._give(name, machine, Tick())

    def crash(self) -> None:
        """Everything but what is durable is gone; then the node starts again."""
        self.crash_count += 1
        self._machines.clear()
        self._steps.clear()
        self._waiting.clear()
        for name, data in self.saved.items():
            machine, actions = Transaction.restore(CONFIG, decode_snapshot(data))
            self._machines[name] = machine
            self._act(name, machine, actions)

    def _give(self, name: str, machine: Transaction, event: TransactionEvent) -> None:
        actions = machine.handle(event, self.now_ms)
        if machine.is_dead or machine.is_blank:
            self._machines.pop(name, None)
        self._act(name, machine, actions)

    def _act(self, name: str, machine: Transaction, actions: list[TransactionAction]) -> None:
        saves = [action for action in actions if isinstance(action, Save | Erase)]
        assert len(saves) <= 1, "one save at a time"
        for action in actions:
            match action:
                case Reply():
                    self._reply(action)
                case Save() | Erase():
                    self._steps.append(self._saving(name, machine, action))
                case WriteMarkers():
                    self._mark(name, machine, action, list(action.partitions))

    def _reply(self, reply: Reply) -> None:
        on_reply = self._waiting.pop(reply.token, None)
        if on_reply is not None and self.random.random() >= self.trouble / 4:
            on_reply(reply)

    def _saving(self, name: str, machine: Transaction, action: Save | Erase) -> Callable[[], None]:
        def report(event: Saved | SaveFailed) -> Callable[[], None]:
            return lambda: self._give(name, machine, event)

        def save() -> None:
            is_failing = self.random.random() < self.trouble
            if not is_failing or self.random.random() < 0.5:
                self._apply(name, action)
            self._steps.append(report(SaveFailed() if is_failing else Saved()))

        return save

    def _apply(self, name: str, action: Save | Erase) -> None:
        if isinstance(action, Erase):
            self.saved.pop(name, None)
            return
        self.saved[name] = encode_snapshot(action.snapshot)
        for group, offsets in action.commits.items():
            for shard, committed in offsets.items():
                self.group_offsets[group, shard] = committed
                self.offset_history.append((group, committed.offset))

    def _mark(
        self,
        name: str,
        machine: Transaction,
        action: WriteMarkers,
        left: list[TransactionPartition],
    ) -> None:
        """Markers one by one in any order; one that fails is tried again."""
        if not left:
            self._steps.append(lambda: self._give(name, machine, MarkersWritten()))
            return

        def mark() -> None:
            partition = left[self.random.randrange(len(left))]
            outcome = self.random.random()
            if outcome >= self.trouble / 2:
                self.shards[partition.shard].mark(
                    action.producer_id, action.epoch, is_commit=action.is_commit
                )
            if outcome >= self.trouble:
                left.remove(partition)  # Else it failed, or is not known to have succeeded.
            self._mark(name, machine, action, left)

        self._steps.append(mark)
