"""A process: drives the real core with a fake disk, a fake network and a fake meta store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from firnmq.cluster.replication import Refusal
from firnmq.cluster.replication.actions import (
    Action,
    AdvanceHighWatermark,
    ChooseNext,
    Complete,
    Fail,
    Freeze,
    LogEvent,
    PersistFence,
    ReadRecord,
    Send,
    SendToController,
    ServeFetch,
    ServeSealed,
    ServeTail,
    Stage,
    StopLeading,
    Transact,
    Truncate,
    Unfreeze,
    served_crc,
)
from firnmq.cluster.replication.events import (
    Awaited,
    BeginSeal,
    Durable,
    FencePersisted,
    NextChosen,
    NodeSeen,
    Outcome,
    Received,
    RecordSeen,
    ReplicaFound,
    Request,
    SessionRenewed,
    Staged,
    StorageFailed,
    StorageReopened,
    Tick,
    TransactionDone,
    Truncated,
)
from firnmq.cluster.replication.following.state import ReplicaState
from firnmq.cluster.replication.messages import (
    FenceAnswers,
    FetchAnswer,
    FetchedSegment,
    Message,
    SealRequest,
    Tail,
    TailCopied,
)
from firnmq.cluster.replication.node import Node, NodeEvent
from firnmq.cluster.replication.sealing.controller import Controller, ControllerEvent
from firnmq.cluster.replication.values import (
    Acks,
    Durability,
    Fence,
    Incarnation,
    Member,
    MonotonicMs,
    NodeId,
    Placement,
    RecordState,
    ReplicatedSegment,
    Revision,
    SegmentId,
    Token,
)
from firnmq.ids import Offset
from tests.simulation.cluster.disk import Batch, Disk, Log, NoSuchEnd

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

CONTROLLER_MESSAGES = (FenceAnswers, TailCopied, SealRequest)


class Host:
    def __init__(self, world: World, node: NodeId) -> None:
        self.world = world
        self.id = node
        self.disk = Disk()
        self.life = 0
        """Counts processes; what was meant for an earlier one is dropped."""
        self.is_up = False
        self.is_paused = False
        self.clock_offset_ms = world.random.randrange(10**6)
        self.node: Node | None = None
        self.controller: Controller | None = None
        self.marks: dict[SegmentId, Offset] = {}
        """High watermarks as shown by this life's leaders."""
        self.serving: set[SegmentId] = set()
        self._waiting: dict[Token, tuple[Acks, Offset, SegmentId, Callable[[bool], None]]] = {}
        self._deferred: list[Callable[[], None]] = []
        self._watched = 0
        self._session_at_ms = 0
        self._is_lane_busy = False
        self._syncs: set[SegmentId] = set()
        """Segments of which a sync is in the lane."""

    @property
    def now(self) -> MonotonicMs:
        return MonotonicMs(self.world.now_ms + self.clock_offset_ms)

    @property
    def own(self) -> Member:
        assert self.node is not None
        return self.node.own

    # Life and death

    def start(self) -> None:
        assert not self.is_up
        self.life += 1
        self.is_up, self.is_paused = True, False
        self._deferred.clear()
        self._register()

    def crash(self) -> None:
        self.life += 1
        self.is_up = self.is_paused = False
        self.node = self.controller = None
        self.marks.clear()
        self.serving.clear()
        self._waiting.clear()
        self._is_lane_busy = False
        self._syncs.clear()
        self.disk.crash(self.world.random)

    def lose_tail(self) -> None:
        if self.disk.lose_tail(self.world.random):
            self.disk.made_in = self.disk.incarnation = None

    def wipe(self) -> None:
        self.disk.wipe()
        self.disk.made_in = self.disk.incarnation = None

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for act in deferred:
            self.do(act)

    def do(self, act: Callable[[], None]) -> None:
        """Runs something in the process, once it runs."""
        if not self.is_up:
            return
        if self.is_paused:
            self._deferred.append(act)
        else:
            act()

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        life = self.life
        self.world.after(delay_ms, lambda: self.do(act) if self.life == life else None)

    def _register(self) -> None:
        asked, store = self.now, self.world.store
        last = store.incarnations.get(self.id, 0)
        self.world.ask_store(
            self,
            lambda: store.register(self.id, last, self.world.now_ms),
            lambda incarnation: self._begin(incarnation, asked),
            self._register,
        )

    def _begin(self, incarnation: Incarnation | None, asked: MonotonicMs) -> None:
        if incarnation is None:
            self._register()
            return
        disk, config = self.disk, self.world.config
        if disk.made_in is None or config.durability is Durability.MEMORY:
            disk.made_in = incarnation
        made_in = disk.made_in
        disk.incarnation = incarnation
        self.node = self.world.parts.node(
            Member(self.id, incarnation), lambda segment: made_in, lambda segment: config
        )
        self.give(SessionRenewed(asked_ms=asked))
        for segment, log in disk.logs.items():
            self.world.judge.durable(self.world.store.records[segment], self.id, disk)
            self.give(ReplicaFound(segment=segment, at=log.durable, fence=log.fence))
        # The first view of the store may be an old one, as every cache's.
        changes, behind = self.world.store.changes, self.world.random.choice([0, 0, 1, 3])
        self._watched = max(0, len(changes) - behind)
        seen = [each for each in changes[: self._watched] if isinstance(each, ReplicatedSegment)]
        for record in {each.segment: each for each in seen}.values():
            self.give(RecordSeen(record=record))
        self._session_at_ms = self.now
        self.after(self.world.random.choice([0, 5, 30]), self.tick)

    def _lapsed(self) -> None:
        """The session is gone: the process begins again, and its disk has all it had."""
        self.world.trace(f"{self.id} has lost its session")
        self.crash()
        self.start()

    # The core

    def give(self, event: NodeEvent) -> None:
        assert self.node is not None
        self.world.trace(f"{self.id} <", event)
        self.perform(self.node.handle(event, self.now))

    def give_controller(self, event: ControllerEvent) -> None:
        if self.controller is not None:
            self.world.trace(f"{self.id} controller <", event)
            self.perform(self.controller.handle(event, self.now))
            if self.controller is not None and self.controller.is_deposed:
                self.controller = None

    def received(self, message: Message) -> None:
        if isinstance(message, CONTROLLER_MESSAGES):
            self.give_controller(Received(message=message))
        elif self.node is not None:
            self.give(Received(message=self._chained(message)))

    def _chained(self, message: Message) -> Message:
        """The CRC that a driver computes over what it received, from its own replica's end."""
        if isinstance(message, FetchAnswer):
            segments = tuple(self._chained_segment(each) for each in message.segments)
            return FetchAnswer(incarnation=message.incarnation, segments=segments)
        return self._chained_segment(message) if isinstance(message, Tail) else message

    def _chained_segment(self, content):  # type: ignore[no-untyped-def]
        log = self.disk.logs.get(content.segment)
        crc = log.end.crc if log is not None else 0
        for batch in content.payload:
            crc = batch.chained(crc)
        return self.world.with_crc(content, crc)

    def tick(self) -> None:
        world = self.world
        if self.node is None:
            return
        self.watch()
        self.give(Tick())
        self.give_controller(Tick())
        if self.now - self._session_at_ms >= world.config.session_ttl_ms // 4:
            self._session_at_ms = self.now
            self._keep_alive()
        holder = world.store.controller
        if self.controller is None and (holder is None or holder[0] == self.id):
            self._campaign()
        self.after(world.config.retry_ms // 2 + world.random.randrange(10), self.tick)

    def _keep_alive(self) -> None:
        asked, own = self.now, self.own

        def answered(is_alive: bool) -> None:
            if self.node is None or self.own != own:
                return
            if is_alive:
                self.give(SessionRenewed(asked_ms=asked))
            else:
                self._lapsed()

        store = self.world.store
        self.world.ask_store(
            self, lambda: store.keep_alive(own, self.world.now_ms), answered, lambda: None
        )

    def _campaign(self) -> None:
        own = self.own

        def elected(term: Revision | None) -> None:
            is_same = self.node is not None and self.own == own
            if term is None or not is_same or self.controller is not None:
                return
            store = self.world.store
            alive = {node: each.incarnation for node, each in store.nodes.items()}
            config = self.world.config
            self.controller = self.world.parts.controller(
                self.id, term, alive, lambda segment: config
            )
            self.world.trace(f"{self.id} is the controller of term {term}")
            for record in store.unsealed():
                self.give_controller(RecordSeen(record=record))

        self.world.ask_store(self, lambda: self.world.store.campaign(own), elected, lambda: None)

    def watch(self) -> None:
        """Everything that happened in the store since the last time, in order."""
        if self.node is None or not self.world.can_reach_store(self):
            return
        changes = self.world.store.changes
        while self.node is not None and self._watched < len(changes):
            change = changes[self._watched]
            self._watched += 1
            if isinstance(change, ReplicatedSegment):
                self.give(RecordSeen(record=change))
                self.give_controller(RecordSeen(record=change))
            else:
                node, incarnation = change
                self.give_controller(NodeSeen(node=node, incarnation=incarnation))

    # Actions

    def perform(self, actions: list[Action]) -> None:
        answers: dict[Member, list[FetchedSegment]] = {}
        for action in actions:
            self.world.trace(f"{self.id} >", action)
            match action:
                case Send(node=node, message=message):
                    if isinstance(message, FenceAnswers):
                        self._check_fences(message)
                    self.world.send(self.id, node, message)
                case SendToController(message=message):
                    holder = self.world.store.controller
                    if holder is not None:
                        self.world.send(self.id, holder[0], message)
                case ServeFetch():
                    self._serve_fetch(action, answers)
                case ServeTail():
                    self._serve_tail(action)
                case Stage():
                    self._stage(action)
                case PersistFence():
                    self._persist_fence(action.segment, action.fence)
                case Truncate():
                    self._truncate(action.segment, action.end)
                case Transact():
                    self._transact(action)
                case ReadRecord(segment=segment):
                    self._read(segment)
                case ChooseNext(record=record, holders=holders):
                    placement = self.world.place(record, holders)
                    if placement is not None:
                        chosen = NextChosen(segment=record.segment, placement=placement)
                        self.after(0, lambda chosen=chosen: self.give_controller(chosen))
                case AdvanceHighWatermark(segment=segment, offset=offset):
                    self._advance(segment, offset)
                case Complete(tokens=tokens):
                    self._complete(tokens)
                case Fail(tokens=tokens):
                    for token in tokens:
                        self._waiting.pop(token)[3](False)
                case ServeSealed(segment=segment):
                    self.serving.add(segment)
                case Freeze() | Unfreeze() | StopLeading() | LogEvent():
                    pass  # The trace has them.
                case _:
                    assert_never(action)
        for member, segments in answers.items():
            answer = FetchAnswer(incarnation=member.incarnation, segments=tuple(segments))
            self.world.send(self.id, member.node, answer)

    def _check_fences(self, message: FenceAnswers) -> None:
        for answer in message.answers:
            log = self._log(answer.segment)
            self.world.judge.check(
                log.fence >= answer.fence and log.durable == answer.at,
                f"{self.own} answers {answer}, and its disk has fence {log.fence}, {log.durable}",
            )

    def _advance(self, segment: SegmentId, offset: Offset) -> None:
        before = self.marks.get(segment)
        judge, record = self.world.judge, self.world.store.records[segment]
        judge.check(before is None or offset > before, f"the mark of {segment} goes back")
        self.marks[segment] = offset
        judge.shown(record, offset, self.own)

    def _complete(self, tokens: list[Token]) -> None:
        for token in tokens:
            acks, end, segment, reply = self._waiting.pop(token)
            world = self.world
            is_alive = world.store.is_alive(self.own)
            world.judge.acked(world.store.records[segment], acks, end, self.own, is_alive)
            reply(True)

    def _serve_fetch(self, serve: ServeFetch, answers: dict[Member, list[FetchedSegment]]) -> None:
        log = self.disk.logs[serve.segment]
        count = self.world.random.choice([1, 2, 1_000])
        first = log.count_at(serve.start)
        batches = tuple(log.batches[first : first + count])
        if not batches:
            return
        at = log.point(first + len(batches))
        answers.setdefault(serve.to, []).append(
            FetchedSegment(
                segment=serve.segment,
                fence=serve.fence,
                start=serve.start,
                at=at,
                leader_crc=served_crc(serve.at, at.end),
                payload=batches,
            )
        )

    def _serve_tail(self, serve: ServeTail) -> None:
        log = self.disk.logs[serve.segment]
        try:
            first, last = log.count_at(serve.start), log.count_at(serve.end)
        except NoSuchEnd:
            return
        last = min(last, first + self.world.random.choice([1, 1_000]))
        tail = Tail(
            segment=serve.segment,
            fence=serve.fence,
            incarnation=serve.to.incarnation,
            start=serve.start,
            at=log.point(last),
            payload=tuple(log.batches[first:last]),
        )
        self.world.send(self.id, serve.to.node, tail)

    # The disk: one lane, in order

    def _submit(self, segment: SegmentId, act: Callable[[], None]) -> None:
        self.disk.lane.append((segment, act))
        self._run_lane()

    def _run_lane(self) -> None:
        if self._is_lane_busy or not self.disk.lane:
            return
        self._is_lane_busy = True
        delay = self.world.random.choice([0, 1, 1, 2, 5]) * self.disk.slowness

        def done() -> None:
            self._is_lane_busy = False
            if self.disk.lane:
                self.disk.lane.popleft()[1]()
            if self.node is not None:
                self._run_lane()

        self.after(delay, done)

    def _fails(self, segment: SegmentId) -> bool:
        """A write fails: nothing in flight is done, and the log is reopened from the disk."""
        if segment not in self.disk.failing:
            return False
        self.disk.failing.discard(segment)
        lane, log = self.disk.lane, self._log(segment)
        rest = [each for each in lane if each[0] != segment]
        lane.clear()
        lane.extend(rest)
        self._syncs.discard(segment)
        log.truncate(log.durable_count)
        self.give(StorageFailed(segment=segment))
        self.after(20, lambda: self._reopened(segment))
        return True

    def _reopened(self, segment: SegmentId) -> None:
        log = self.disk.logs.get(segment)
        if log is not None:
            self.give(StorageReopened(segment=segment, at=log.durable, fence=log.fence))

    def _log(self, segment: SegmentId) -> Log:
        return self.disk.log(segment, self.world.store.records[segment].start)

    def _stage(self, stage: Stage) -> None:
        assert self.node is not None
        state = self.node.replicas[stage.segment].state
        is_copy = state in (ReplicaState.COPYING, ReplicaState.REPAIRING)

        def write() -> None:
            if self._fails(stage.segment):
                return
            log, judge = self._log(stage.segment), self.world.judge
            if not is_copy:
                judge.fenced_write(stage.segment, log, self.id)
            for batch in stage.payload:  # type: ignore[attr-defined]
                judge.stored(stage.segment, log.append(batch), batch, self.own)
            judge.check(log.end == stage.at, f"{self.own} stores {stage}, and has {log.end}")
            log.durable_count = len(log.batches)
            judge.durable(self.world.store.records[stage.segment], self.id, self.disk)
            self.give(Durable(segment=stage.segment, at=log.durable))

        self._submit(stage.segment, write)

    def _persist_fence(self, segment: SegmentId, fence: Fence) -> None:
        def persist() -> None:
            if self._fails(segment):
                return
            log = self._log(segment)
            log.fence = max(log.fence, fence)
            log.durable_count = len(log.batches)
            self.give(FencePersisted(segment=segment, fence=fence, at=log.durable))

        self._submit(segment, persist)

    def _truncate(self, segment: SegmentId, end: Offset) -> None:
        def truncate() -> None:
            log = self._log(segment)
            self.world.judge.truth(self.world.store.records[segment])
            self.world.judge.truncated(segment, self.id, log, end)
            if log.end.end > end:
                log.truncate(log.count_at(end))
            log.durable_count = len(log.batches)
            self.give(Truncated(segment=segment, at=log.durable))

        self._submit(segment, truncate)

    # The meta store

    def _transact(self, transact: Transact) -> None:
        def answered(outcome: Outcome) -> None:
            done = TransactionDone(owner=transact.owner, number=transact.number, outcome=outcome)
            if transact.owner is None:
                if self.controller is not None and self.controller.term == transact.guard:
                    self.give_controller(done)
            elif self.node is not None:
                self.give(done)

        self.world.ask_store(
            self,
            lambda: self.world.store.transact(transact),
            answered,
            lambda: answered(Outcome.UNKNOWN),
        )

    def _read(self, segment: SegmentId) -> None:
        def answered(record: ReplicatedSegment) -> None:
            if self.node is not None:
                self.give(RecordSeen(record=record))
                self.give_controller(RecordSeen(record=record))

        store = self.world.store
        self.world.ask_store(self, lambda: store.records[segment], answered, lambda: None)

    # Clients

    def append(
        self, segment: SegmentId, batch: Batch, acks: Acks, reply: Callable[[bool], None]
    ) -> Refusal | None:
        """Takes an append, unless it is refused; `reply` tells acknowledged or unknown."""
        world = self.world
        leader = self.node.leaders.get(segment) if self.node is not None else None
        if leader is None:
            return Refusal.NOT_LEADING
        refusal = leader.refusal(acks, self.now)
        if refusal is not None:
            return refusal
        log = self._log(segment)
        world.judge.fenced_write(segment, log, self.id)
        if self._is_known(segment, log, batch, acks, reply):
            return None
        point = log.append(batch)
        world.judge.appended(world.store.records[segment], self.own, point, batch)
        request = self._request(point.end, acks, segment, reply)
        self.give(Staged(segment=segment, at=point, requests=(request,)))
        if segment not in self._syncs:
            self._syncs.add(segment)
            self._submit(segment, lambda: self._sync(segment))
        return None

    def _is_known(
        self,
        segment: SegmentId,
        log: Log,
        batch: Batch,
        acks: Acks,
        reply: Callable[[bool], None],
    ) -> bool:
        """A retry of an idempotent producer: acknowledged with the batch that is there."""
        if batch.sequence < 0:
            return False
        sealed = self.world.judge.sealed_batches(segment.shard, batch.producer)
        if batch.sequence in sealed:
            reply(True)
            return True
        for each, point in zip(log.batches, log.points, strict=True):
            if (each.producer, each.sequence) == (batch.producer, batch.sequence):
                request = self._request(point.end, acks, segment, reply)
                self.give(Awaited(segment=segment, requests=(request,)))
                return True
        return False

    def _request(
        self, end: Offset, acks: Acks, segment: SegmentId, reply: Callable[[bool], None]
    ) -> Request:
        token = self.world.next_token()
        self._waiting[token] = (acks, end, segment, reply)
        deadline = MonotonicMs(self.now + self.world.config.session_ttl_ms)
        return Request(token, end, acks, deadline)

    def _sync(self, segment: SegmentId) -> None:
        """One sync for everything that was staged by now."""
        self._syncs.discard(segment)
        if self._fails(segment):
            return
        log = self.disk.logs[segment]
        log.durable_count = len(log.batches)
        self.world.judge.durable(self.world.store.records[segment], self.id, self.disk)
        self.give(Durable(segment=segment, at=log.durable))

    def roll(self, segment: SegmentId, placement: Placement) -> None:
        if self.node is not None:
            self.give(BeginSeal(segment=segment, placement=placement))

    def leads(self, record: ReplicatedSegment) -> bool:
        return (
            record.state is RecordState.ACTIVE
            and self.node is not None
            and not self.is_paused
            and record.segment in self.node.leaders
        )
