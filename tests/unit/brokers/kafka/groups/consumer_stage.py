"""A stage for one group of either kind: clients speak their lines, the store and time obey."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from firnmq.brokers.kafka.groups import (
    AnySnapshot,
    CommitRequest,
    Group,
    GroupConfig,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    Leaver,
    LeaveRequest,
    SyncRequest,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.brokers.kafka.groups.consumer.machine import ConsumerGroup
from firnmq.brokers.kafka.groups.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    FetchCheck,
    Partitions,
)
from firnmq.brokers.kafka.groups.coordinated import CoordinatedGroup
from firnmq.brokers.kafka.groups.messages import (
    Asked,
    CodeReply,
    DeleteRequest,
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
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups import consumer_invariants, invariants
from tests.unit.brokers.kafka.groups.fake_topics import FakeTopics, subscription

REBALANCE_MS = 30_000
SESSION_MS = 10_000


class NotAnswered(Exception):
    pass


@dataclass
class ConsumerStage:
    """`auto_save` answers every write at once; without it the test decides with `save`."""

    topics: FakeTopics = field(default_factory=lambda: FakeTopics(a=6))
    config: GroupConfig = field(default_factory=lambda: GroupConfig(initial_rebalance_delay_ms=0))
    auto_save: bool = True
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)
        self.answers: dict[Token, GroupReply] = {}
        self.writes: list[Persist | Erase] = []
        self.saved: bytes | None = None
        self.group = CoordinatedGroup(
            "g", config=self.config, new_id=self.new_id, topics=self.topics
        )

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

    @property
    def snapshot(self) -> AnySnapshot:
        assert self.saved is not None
        return decode_snapshot(self.saved)

    def restart(self) -> None:
        """The node crashes and comes back with what was saved."""
        self.answers.clear()
        self.writes.clear()
        self.group = CoordinatedGroup.restore(
            "g",
            self.snapshot,
            self.now_ms,
            config=self.config,
            new_id=self.new_id,
            topics=self.topics,
            generation_gap=1_000,
        )

    def check(self) -> None:
        kind = self.group.kind
        if isinstance(kind, ConsumerGroup):
            consumer_invariants.check(kind.core)
        else:
            assert isinstance(kind, Group)
            invariants.check(kind)

    def give(self, event: GroupEvent) -> None:
        for action in self.group.handle(event, self.now_ms):
            if isinstance(action, Reply):
                assert action.token not in self.answers, "answered twice"
                self.answers[action.token] = action.body
            else:
                self.writes.append(action)
        self.check()
        if self.auto_save:
            self.save()

    def save(self) -> None:
        while self.writes:
            write = self.writes.pop(0)
            self.saved = encode_snapshot(write.snapshot) if isinstance(write, Persist) else None
            self.give(WriteDone(seq=write.seq))

    def fail_save(self) -> None:
        self.give(WriteFailed(seq=self.writes.pop(0).seq))

    def wait(self, ms: int) -> None:
        """Lets time pass, with every tick on its millisecond."""
        end_ms = self.now_ms + ms
        while (wake_ms := self.group.wake_ms) is not None and wake_ms <= end_ms:
            self.now_ms = max(wake_ms, self.now_ms)
            self.give(Tick())
            assert self.group.wake_ms is None or self.group.wake_ms > self.now_ms, "busy loop"
        self.now_ms = end_ms

    def ask(self, request: GroupRequest) -> Token:
        token = Token(next(self._tokens))
        self.give(Asked(token=token, request=request))
        return token

    def answer(self, request: GroupRequest) -> Any:
        token = self.ask(request)
        if token not in self.answers:
            raise NotAnswered
        return self.answers[token]

    # Members of the consumer protocol.

    def beat(self, member_id: str, epoch: int, **changes: Any) -> ConsumerHeartbeatReply:
        if epoch == 0:
            full: dict[str, Any] = {
                "rebalance_timeout_ms": REBALANCE_MS,
                "topic_names": frozenset({"a"}),
                "owned": frozenset(),
            }
            changes = full | changes
        reply = self.answer(ConsumerHeartbeat(member_id=member_id, epoch=epoch, **changes))
        assert isinstance(reply, ConsumerHeartbeatReply)
        return reply

    def join(self, member_id: str, **changes: Any) -> ConsumerHeartbeatReply:
        reply = self.beat(member_id, 0, **changes)
        assert reply.error is ErrorCode.NONE, (reply.error, reply.message)
        return reply

    def settle(self, *member_ids: str, rounds: int = 10) -> dict[str, Partitions]:
        """Members heartbeat and give up at once what they are told to; what each has in the end."""
        assert isinstance(self.group.kind, ConsumerGroup)
        has = {each: self.group.kind.core.members.by_id[each].assigned for each in member_ids}
        epochs = {each: self.group.kind.core.members.by_id[each].epoch for each in member_ids}
        for _ in range(rounds):
            for each in member_ids:
                reply = self.beat(each, epochs[each], owned=has[each])
                assert reply.error is ErrorCode.NONE, (each, reply)
                epochs[each] = reply.epoch
                if reply.assignment is not None:
                    has[each] = reply.assignment
        return has

    def commit(self, member_id: str = "", generation: int = -1, **changes: Any) -> ErrorCode:
        request = CommitRequest(member_id=member_id, generation=generation, **changes)
        code: ErrorCode = self.answer(request).error
        return code

    def fetch(self, member_id: str, epoch: int) -> ErrorCode:
        code: ErrorCode = self.answer(FetchCheck(member_id=member_id, epoch=epoch)).error
        return code

    def delete(self) -> ErrorCode:
        reply = self.answer(DeleteRequest())
        assert isinstance(reply, CodeReply)
        return reply.error

    # Members of the classic protocol.

    def classic_join(
        self,
        member_id: str = "",
        *,
        topics: frozenset[str] = frozenset({"a"}),
        owned: tuple[tuple[str, int], ...] = (),
        protocols: tuple[str, ...] = ("range",),
        **changes: Any,
    ) -> Token:
        fields: dict[str, Any] = {
            "protocol_type": "consumer",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
        }
        metadata = subscription(topics, owned)
        offered = tuple(GroupProtocol(name=name, metadata=metadata) for name in protocols)
        return self.ask(JoinRequest(member_id=member_id, protocols=offered, **(fields | changes)))

    def sync(self, member_id: str, generation: int, **assignments: bytes) -> Any:
        return self.answer(
            SyncRequest(member_id=member_id, generation=generation, assignments=assignments)
        )

    def classic_beat(self, member_id: str, generation: int) -> ErrorCode:
        code: ErrorCode = self.answer(
            HeartbeatRequest(member_id=member_id, generation=generation)
        ).error
        return code

    def classic_leave(self, member_id: str) -> ErrorCode:
        reply = self.answer(LeaveRequest(members=(Leaver(member_id=member_id),)))
        code: ErrorCode = reply.members[0].error
        return code
