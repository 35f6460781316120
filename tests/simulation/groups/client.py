"""A consumer that follows the group protocol as the real client libraries do."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from firnmq.brokers.kafka.groups import (
    GroupProtocol,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveRequest,
    SyncReply,
    SyncRequest,
)
from firnmq.brokers.kafka.groups.messages import GroupReply, GroupRequest
from firnmq.brokers.kafka.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from tests.simulation.groups.world import World

RETRY = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
}
REQUEST_TIMEOUT_MS = 5_000


class Phase(enum.Enum):
    IDLE = "about to join"
    JOINING = "waits for the others"
    SYNCING = "waits for its assignment"
    STABLE = "consumes"
    STOPPED = "stopped"


class Client:
    """Owned by the simulation. `turn` counts its decisions, so that late answers are told apart."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.connection = 0
        self.phase = Phase.IDLE
        self.member_id = ""
        self.generation = -1
        self.topics = 0
        self.is_paused = False
        random = world.random
        self.session_ms = random.choice([1_500, 3_000, 10_000])
        self.rebalance_ms = random.choice([3_000, 10_000, 20_000])
        self.needs_known_id = random.random() < 0.8
        self.protocols = random.choice([["range"], ["range", "sticky"], ["sticky", "range"]])
        self._turn = 0
        self.join_soon()
        self._beat_later()

    @property
    def is_alive(self) -> bool:
        return self.phase is not Phase.STOPPED

    # What happens to it.

    def crash(self) -> None:
        self.phase = Phase.STOPPED
        self.drop_connection()

    def leave(self) -> None:
        leaver = Leaver(member_id=self.member_id, instance_id=self.instance_id)
        self.world.send(self, LeaveRequest(members=(leaver,)), lambda reply: None)
        self.phase = Phase.STOPPED

    def resubscribe(self) -> None:
        self.topics += 1
        if self.phase is Phase.STABLE:
            self.join()

    def pause(self, ms: int) -> None:
        """Neither sends nor reacts, as in a long garbage collection."""
        self.is_paused = True

        def resume() -> None:
            self.is_paused = False

        self.world.after(ms, resume)

    def drop_connection(self) -> None:
        self.world.hang_up(self, self.connection)
        self.disconnected()

    def disconnected(self) -> None:
        self.connection += 1
        if self.phase in (Phase.JOINING, Phase.SYNCING):
            self.join_soon()

    # What it does.

    def join_soon(self) -> None:
        self.phase = Phase.IDLE
        self._turn += 1
        turn = self._turn

        def later() -> None:
            if turn == self._turn and self.is_alive:
                self.join()

        self.world.after(self.world.random.choice([0, 10, 100, 500]), later)

    def join(self) -> None:
        self.phase = Phase.JOINING
        request = JoinRequest(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            protocol_type="consumer",
            protocols=tuple(
                GroupProtocol(name=name, metadata=b"topics %d" % self.topics)
                for name in self.protocols
            ),
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            requires_known_member_id=self.needs_known_id,
        )
        self._exchange(request, self._on_join, timeout_ms=60_000 + REQUEST_TIMEOUT_MS)

    def _on_join(self, reply: GroupReply) -> None:
        assert isinstance(reply, JoinReply)
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self.join()
        elif reply.error is not ErrorCode.NONE:
            self._on_error(reply.error)
        else:
            self.member_id = reply.member_id
            self.generation = reply.generation
            self.phase = Phase.SYNCING
            request = SyncRequest(
                member_id=self.member_id,
                generation=self.generation,
                instance_id=self.instance_id,
                protocol_type="consumer",
                protocol_name=reply.protocol_name,
                assignments={m.member_id: b"%d" % self.generation for m in reply.members},
            )
            self._exchange(request, self._on_sync, timeout_ms=60_000)

    def _on_sync(self, reply: GroupReply) -> None:
        assert isinstance(reply, SyncReply)
        if reply.error is ErrorCode.NONE:
            assert reply.assignment == b"%d" % self.generation, reply
            self.phase = Phase.STABLE
        else:
            self._on_error(reply.error)

    def _beat_later(self) -> None:
        def beat() -> None:
            if not self.is_alive:
                return
            # The real clients' heartbeat threads are silent while a join is under way.
            if self.phase in (Phase.SYNCING, Phase.STABLE) and not self.is_paused:
                self._beat()
            self._beat_later()

        self.world.after(self.session_ms // 3, beat)

    def _beat(self) -> None:
        request = HeartbeatRequest(
            member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
        )
        turn = self._turn

        def on_reply(reply: GroupReply) -> None:
            is_current = turn == self._turn and self.phase is Phase.STABLE
            if self.is_alive and is_current and reply.error is not ErrorCode.NONE:
                self._on_error(reply.error)

        self.world.send(self, request, on_reply)

    def _on_error(self, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.phase = Phase.STOPPED
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self.join_soon()
        else:
            assert error in RETRY, error.name
            self.join_soon()

    def _exchange(
        self, request: GroupRequest, on_reply: Callable[[GroupReply], None], timeout_ms: int
    ) -> None:
        """Sends a join or a sync; gives up on the connection if there is no answer for long."""
        self._turn += 1
        turn = self._turn

        def receive(reply: GroupReply) -> None:
            if turn == self._turn and self.is_alive:
                on_reply(reply)

        def give_up() -> None:
            if turn == self._turn and self.phase in (Phase.JOINING, Phase.SYNCING):
                self.drop_connection()

        self.world.send(self, request, receive)
        self.world.after(timeout_ms, give_up)
