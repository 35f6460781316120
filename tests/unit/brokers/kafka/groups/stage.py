"""A stage for one group: clients speak their lines, time passes on command, the store obeys."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from firnmq.brokers.kafka.groups import (
    CommitRequest,
    Group,
    GroupConfig,
    GroupProtocol,
    GroupSnapshot,
    GroupState,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveReply,
    LeaveRequest,
    SyncReply,
    SyncRequest,
)
from firnmq.brokers.kafka.groups.messages import (
    Abandoned,
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
from tests.unit.brokers.kafka.groups.invariants import check

SESSION_MS = 10_000
REBALANCE_MS = 60_000


@dataclass
class Call:
    """A request that was sent; `body` appears when it is answered."""

    token: Token
    body: GroupReply | None = None

    @property
    def is_parked(self) -> bool:
        return self.body is None

    @property
    def error(self) -> ErrorCode:
        assert self.body is not None, "not answered yet"
        return self.body.error

    @property
    def joined(self) -> JoinReply:
        assert isinstance(self.body, JoinReply)
        assert self.body.error is ErrorCode.NONE, self.body.error.name
        return self.body

    @property
    def synced(self) -> SyncReply:
        assert isinstance(self.body, SyncReply)
        assert self.body.error is ErrorCode.NONE, self.body.error.name
        return self.body

    @property
    def member_id(self) -> str:
        assert isinstance(self.body, JoinReply)
        return self.body.member_id


@dataclass
class Stage:
    """`auto_save` answers every write at once; without it the test decides with `save`."""

    config: GroupConfig = field(default_factory=lambda: GroupConfig(initial_rebalance_delay_ms=0))
    auto_save: bool = True
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)
        self._calls: dict[Token, Call] = {}
        self.writes: list[Persist | Erase] = []
        self.saved: GroupSnapshot | None = None
        self.group = Group("readers", config=self.config, new_id=self.new_id)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

    def state(self) -> GroupState:
        return self.group.state

    def restart(self) -> None:
        """The node crashes and comes back with what was saved."""
        assert self.saved is not None
        self._calls.clear()
        self.writes.clear()
        self.group = Group.restore(
            "readers",
            self.saved,
            self.now_ms,
            config=self.config,
            new_id=self.new_id,
            generation_gap=1_000,
        )

    def give(self, event: GroupEvent) -> None:
        for action in self.group.handle(event, self.now_ms):
            if isinstance(action, Reply):
                call = self._calls.pop(action.token)
                call.body = action.body
            else:
                self.writes.append(action)
        check(self.group)
        if self.auto_save:
            self.save()

    def save(self) -> None:
        """The store carries out what it was asked to."""
        while self.writes:
            write = self.writes.pop(0)
            self.saved = write.snapshot if isinstance(write, Persist) else None
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

    def ask(self, request: GroupRequest) -> Call:
        call = Call(Token(next(self._tokens)))
        self._calls[call.token] = call
        self.give(Asked(token=call.token, request=request))
        return call

    def hang_up(self, call: Call) -> None:
        """The client's connection is gone."""
        self._calls.pop(call.token, None)
        self.give(Abandoned(token=call.token))

    def join(
        self,
        member_id: str = "",
        *,
        name: str = "c",
        topics: bytes = b"t",
        protocols: dict[str, bytes] | None = None,
        **changes: Any,
    ) -> Call:
        offered = {"range": topics} if protocols is None else protocols
        fields: dict[str, Any] = {
            "protocol_type": "consumer",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
        }
        return self.ask(
            JoinRequest(
                member_id=member_id,
                client_id=name,
                protocols=tuple(
                    GroupProtocol(name=key, metadata=value) for key, value in offered.items()
                ),
                **(fields | changes),
            )
        )

    def sync(
        self,
        joined: JoinReply,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
    ) -> Call:
        """Syncs as the member that got `joined`; as leader it hands out its own kind of plan."""
        if assignments is None:
            assignments = {
                m.member_id: f"{m.member_id}@{joined.generation}".encode() for m in joined.members
            }
        return self.ask(
            SyncRequest(
                member_id=joined.member_id,
                generation=joined.generation,
                instance_id=instance_id,
                assignments=assignments,
            )
        )

    def heartbeat(self, joined: JoinReply, *, instance_id: str | None = None) -> ErrorCode:
        return self.ask(
            HeartbeatRequest(
                member_id=joined.member_id, generation=joined.generation, instance_id=instance_id
            )
        ).error

    def commit(self, member_id: str = "", generation: int = -1, **changes: Any) -> ErrorCode:
        return self.ask(CommitRequest(member_id=member_id, generation=generation, **changes)).error

    def leave(self, *leavers: str | Leaver) -> list[ErrorCode]:
        members = tuple(
            leaver if isinstance(leaver, Leaver) else Leaver(member_id=leaver) for leaver in leavers
        )
        call = self.ask(LeaveRequest(members=members))
        assert isinstance(call.body, LeaveReply)
        return [member.error for member in call.body.members]

    def delete(self) -> Call:
        call = self.ask(DeleteRequest())
        assert call.body is None or isinstance(call.body, CodeReply)
        return call

    def settle(self, *joins: Call) -> list[JoinReply]:
        """All who joined sync, the leader last; the group must become Stable."""
        replies = [call.joined for call in joins]
        for reply in sorted(replies, key=lambda r: r.leader == r.member_id):
            self.sync(reply)
        return replies

    def stable_pair(self) -> tuple[JoinReply, JoinReply]:
        """Two members in a Stable group, the leader first."""
        first = self.join(name="a")
        self.settle(first)
        second = self.join(name="b")
        again = self.join(first.joined.member_id, name="a")
        leader, follower = self.settle(again, second)
        return leader, follower
