"""Consumers of both protocols, which follow them as the real client libraries do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from firnmq.brokers.kafka.groups.consumer.assignors import Assignee, ranges
from firnmq.brokers.kafka.groups.consumer.embedded import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from firnmq.brokers.kafka.groups.consumer.messages import (
    LEAVE_EPOCH,
    NO_PARTITIONS,
    PAUSE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    Partitions,
)
from firnmq.brokers.kafka.groups.messages import GroupReply
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups.fake_topics import subscription

if TYPE_CHECKING:
    from tests.simulation.groups.mixed_world import MixedWorld

TIMEOUT_MS = 4_000
RETRY = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
}
SUBSCRIPTIONS = (frozenset({"a"}), frozenset({"a", "b"}), frozenset({"b"}))


class Client:
    """What both have in common. `turn` counts decisions, so that late answers are told apart."""

    is_classic = False

    def __init__(self, world: MixedWorld, name: str, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.connection = 0
        self.is_alive = True
        self.is_paused = False
        self.member_id = ""
        self.epoch = 0
        self.reading: Partitions = NO_PARTITIONS
        self.topics = world.random.choice(SUBSCRIPTIONS)
        self._turn = 0
        world.readers.append(self)
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def crash(self) -> None:
        self.is_alive = False
        self.reading = NO_PARTITIONS
        self.drop_connection()

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

    def resubscribe(self) -> None:
        self.topics = self.world.random.choice(SUBSCRIPTIONS)


class ConsumerClient(Client):
    """Heartbeats, and gives up what it is told to, which takes it some time."""

    def begin(self) -> None:
        self.member_id = f"{self.name}-id"
        self.rebalance_ms = self.world.random.choice([3_000, 10_000])
        self.uses_pattern = self.world.random.random() < 0.3
        self.is_full = True
        self.is_waiting = False
        self._acknowledged: Partitions | None = None
        self._said: frozenset[str] = frozenset()
        self._beat_later(0)

    def leave(self) -> None:
        epoch = LEAVE_EPOCH
        if self.instance_id is not None and self.world.random.random() < 0.5:
            epoch = PAUSE_EPOCH
        self._forget()
        self.is_alive = False
        request = ConsumerHeartbeat(
            member_id=self.member_id, epoch=epoch, instance_id=self.instance_id
        )
        self.world.send(self, request, lambda reply: None)

    def disconnected(self) -> None:
        super().disconnected()
        self._turn += 1
        self.is_waiting = False
        self.is_full = True

    def _beat_later(self, delay_ms: int) -> None:
        def beat() -> None:
            if not self.is_alive:
                return
            if not self.is_waiting and not self.is_paused:
                self._beat()
            self._beat_later(500)

        self.world.after(delay_ms, beat)

    def _beat(self) -> None:
        is_full = self.is_full or self.epoch == 0
        is_new = is_full or self._said != self.topics
        names, pattern = self.topics, ""
        if self.uses_pattern:
            names, pattern = frozenset(), "|".join(sorted(self.topics))
        owned = self.reading if is_full or self._acknowledged != self.reading else None
        request = ConsumerHeartbeat(
            member_id=self.member_id,
            epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.rebalance_ms if is_full else None,
            topic_names=names if is_new else None,
            pattern=pattern if is_new else None,
            owned=owned,
            client_id=self.name,
        )
        self._turn += 1
        turn, said = self._turn, self.topics
        self.is_waiting = True

        def receive(reply: GroupReply) -> None:
            if turn != self._turn or not self.is_alive:
                return
            self.is_waiting = False
            assert isinstance(reply, ConsumerHeartbeatReply)
            if reply.error is ErrorCode.NONE:
                self.is_full = False
                self._said = said
                if owned is not None:
                    self._acknowledged = owned
            self._on_reply(reply)

        def give_up() -> None:
            if turn == self._turn and self.is_waiting:
                self.drop_connection()

        self.world.send(self, request, receive)
        self.world.after(TIMEOUT_MS, give_up)

    def _on_reply(self, reply: ConsumerHeartbeatReply) -> None:
        match reply.error:
            case ErrorCode.NONE:
                assert reply.epoch >= self.epoch, "an epoch went back"
                self.epoch = reply.epoch
                if reply.assignment is not None:
                    self._take(reply.assignment)
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_MEMBER_EPOCH:
                self._forget()
            case ErrorCode.FENCED_INSTANCE_ID:
                self._forget()
                self.is_alive = False
            case ErrorCode.UNRELEASED_INSTANCE_ID:
                self.is_full = True
            case _:
                assert reply.error in RETRY, (reply.error, reply.message)
                self.is_full = True

    def _forget(self) -> None:
        self.epoch = 0
        self.reading = NO_PARTITIONS
        self._acknowledged = None
        self.is_full = True
        self._turn += 1
        self.is_waiting = False

    def _take(self, assignment: Partitions) -> None:
        if assignment == self.reading:
            return
        self.reading |= assignment & self.reading
        epoch, member = self.epoch, self.member_id

        def finish() -> None:
            if self.is_alive and (self.epoch, self.member_id) == (epoch, member):
                self.reading = assignment

        if self.reading - assignment:
            self.world.after(self.world.random.choice([0, 10, 500, 2_000]), finish)
        else:
            finish()


class ClassicClient(Client):
    """An eager consumer: it gives up everything before it joins."""

    is_classic = True

    def begin(self) -> None:
        self.epoch = -1
        self.is_stable = False
        self.is_joining = False
        self.session_ms = self.world.random.choice([3_000, 10_000])
        self.join_soon()
        self._beat_later()

    def leave(self) -> None:
        leaver = Leaver(member_id=self.member_id, instance_id=self.instance_id)
        self.world.send(self, LeaveRequest(members=(leaver,)), lambda reply: None)
        self.reading = NO_PARTITIONS
        self.is_alive = False

    def disconnected(self) -> None:
        super().disconnected()
        if self.is_joining:
            self.join_soon()

    def resubscribe(self) -> None:
        super().resubscribe()
        if self.is_stable:
            self.join()

    def join_soon(self) -> None:
        self.is_stable = False
        self.is_joining = False
        self._turn += 1
        turn = self._turn

        def later() -> None:
            if turn == self._turn and self.is_alive:
                self.join()

        self.world.after(self.world.random.choice([0, 10, 100, 500]), later)

    def join(self) -> None:
        self.reading = NO_PARTITIONS
        self.is_stable = False
        metadata = subscription(self.topics)
        request = JoinRequest(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            protocol_type="consumer",
            protocols=(GroupProtocol(name="range", metadata=metadata),),
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=10_000,
            requires_known_member_id=True,
        )
        self._exchange(request, self._on_join, 30_000)

    def _on_join(self, reply: GroupReply) -> None:
        assert isinstance(reply, JoinReply)
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self.join()
        elif reply.error is not ErrorCode.NONE:
            self._on_error(reply.error)
        else:
            self.member_id, self.epoch = reply.member_id, reply.generation
            request = SyncRequest(
                member_id=self.member_id,
                generation=self.epoch,
                instance_id=self.instance_id,
                protocol_type="consumer",
                protocol_name=reply.protocol_name,
                assignments=self._plan(reply),
            )
            self._exchange(request, self._on_sync, 30_000)

    def _plan(self, reply: JoinReply) -> dict[str, bytes]:
        topics = self.world.topics
        members = {}
        for member in reply.members:
            found = read_subscription(member.metadata)
            assert found is not None
            members[member.member_id] = Assignee(topics=found.topics, before=NO_PARTITIONS)
        sizes = {name: size for name in topics.names if (size := topics.find(name)) is not None}
        plan = {}
        for member_id, partitions in ranges(members, sizes).items():
            places: dict[str, list[int]] = {}
            for topic_id, index in partitions:
                name = topics.name_of(topic_id)
                assert name is not None
                places.setdefault(name, []).append(index)
            plan[member_id] = write_assignment(places)
        return plan

    def _on_sync(self, reply: GroupReply) -> None:
        assert isinstance(reply, SyncReply)
        if reply.error is not ErrorCode.NONE:
            self._on_error(reply.error)
            return
        places = read_assignment(reply.assignment)
        assert places is not None
        sizes = ((self.world.topics.find(topic), index) for topic, index in places)
        self.reading = frozenset((size.topic_id, index) for size, index in sizes if size)
        self.is_joining = False
        self.is_stable = True

    def _beat_later(self) -> None:
        def beat() -> None:
            if not self.is_alive:
                return
            if self.is_stable and not self.is_paused:
                self._beat()
            self._beat_later()

        self.world.after(self.session_ms // 3, beat)

    def _beat(self) -> None:
        request = HeartbeatRequest(
            member_id=self.member_id, generation=self.epoch, instance_id=self.instance_id
        )
        turn = self._turn

        def on_reply(reply: GroupReply) -> None:
            is_current = turn == self._turn and self.is_stable
            if self.is_alive and is_current and reply.error is not ErrorCode.NONE:
                self._on_error(reply.error)

        self.world.send(self, request, on_reply)

    def _on_error(self, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.reading = NO_PARTITIONS
            self.is_alive = False
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.reading = NO_PARTITIONS
            self.member_id = ""
            self.join_soon()
        else:
            assert error in RETRY, error.name
            self.join_soon()

    def _exchange(self, request: Any, on_reply: Any, timeout_ms: int) -> None:
        """Sends a join or a sync; gives up on the connection if there is no answer for long."""
        self._turn += 1
        turn = self._turn
        self.is_joining = True

        def receive(reply: GroupReply) -> None:
            if turn == self._turn and self.is_alive:
                on_reply(reply)

        def give_up() -> None:
            if turn == self._turn and self.is_joining:
                self.drop_connection()

        self.world.send(self, request, receive)
        self.world.after(timeout_ms, give_up)
