"""An abstract model of replication: one segment of one shard, its replicas, leader and controller.

It is small enough to visit every state it can reach. Time does not exist here: a message may arrive
at any later moment or never, a follower may lag for any reason, and a node that is down is a node
that no message reaches. `Rules` are the rules of the protocol; with one of them off, the search
must find a way to lose or to diverge, which shows that the model can tell.

A record is a number that no other append gets. What must hold is in `violation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Ids = tuple[int, ...]
Member = tuple[int, int]  # Node and incarnation.
Members = frozenset[Member]
Message = tuple[object, ...]

LEADER = 0  # Replicas are alike; the one that leads is the first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Each is part of the protocol. All on: nothing is lost."""

    isr_is_maximal: bool = True
    """The high watermark waits for members of the ISR in force and of the one proposed."""
    silent_members_count: bool = True
    """A member that was never heard from holds the high watermark at the segment's start."""
    quorum_is_of_replicas: bool = True
    """A quorum is a majority of all replicas, not of the ISR."""
    restarted_leader_resigns: bool = True
    failed_leader_resigns: bool = True
    """A leader whose write failed does not go on with its segment."""
    lost_tails_do_not_count: bool = True
    """A replica that lost its tail counts for nothing until it was let in again."""
    both_marks_before_isr: bool = True
    """A follower is let in when it has the high watermark and the quorum mark, not one of them."""
    fence_is_persisted: bool = True
    majority_answers_fence: bool = True
    """A seal waits for |R| - Q + 1 replicas that count."""
    isr_member_answers_fence: bool = True
    """A seal waits for a member of the ISR that counts."""
    end_is_greatest: bool = True
    """A seal ends at the greatest end among the answers, not at that of a member of the ISR."""
    seal_compares_fence: bool = True
    """A seal of an earlier fence is refused."""
    fenced_replicas_stop: bool = True
    """A replica takes no records from a leader with another fence than its own."""
    messages_name_segment: bool = True
    frozen_until_known: bool = True
    """A leader that has asked for a planned seal appends nothing until it knows the outcome."""
    planned_seal_waits_for_isr: bool = True
    """Every member of the ISR has all before a planned seal."""
    planned_seal_compares_epoch: bool = True
    """A planned seal is refused once the record changed in any way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much may happen. The search visits every order of it."""

    replicas: int
    min_in_sync: int
    records: int = 1
    restarts: int = 0
    lost_tails: int = 0  # How many of the restarts may lose something.
    write_failures: int = 0
    isr_changes: int = 0
    fences: int = 1
    planned_seals: int = 0
    segments: int = 1

    @property
    def quorum(self) -> int:
        return self.replicas // 2 + 1


class Replica(NamedTuple):
    log: Ids = ()
    durable: int = 0  # How many of them the disk has.
    fence: int = 0
    incarnation: int = 1
    continuous_since: int = 1  # The incarnation since which nothing durable was lost.


class Report(NamedTuple):
    """What a replica says of itself, to the leader in a fetch or to the controller in an answer."""

    end: int
    incarnation: int
    continuous_since: int


class Leader(NamedTuple):
    """What the leader knows. All of it is gone with its process."""

    is_leading: bool
    isr: Members
    epoch: int
    proposed: Members | None
    reports: tuple[Report | None, ...]
    high_watermark: int = 0
    quorum_mark: int = 0
    is_frozen: bool = False


class Record(NamedTuple):
    """The segment's record in the meta store."""

    is_sealed: bool
    epoch: int
    fence: int
    isr: Members
    opened: tuple[int, ...]  # Each replica's incarnation when the segment was opened.
    content: Ids | None = None  # What is sealed, from the start to E.
    seals: int = 0


class Controller(NamedTuple):
    fence: int = 0
    answers: tuple[Report | None, ...] = ()
    content: Ids | None = None  # What the seal will have, once that is decided and found.
    confirmed: frozenset[int] = frozenset()


class Left(NamedTuple):
    """What may still happen."""

    records: int
    restarts: int
    lost_tails: int
    write_failures: int
    isr_changes: int
    fences: int
    planned_seals: int
    segments: int


class World(NamedTuple):
    segment: int
    replicas: tuple[Replica, ...]
    leader: Leader
    record: Record
    controller: Controller
    messages: frozenset[Message]
    promised: Ids  # What was acknowledged with `all` or `quorum`, or read: it must never vanish.
    left: Left


Step = tuple[str, World]
Item = TypeVar("Item")


def put(items: tuple[Item, ...], at: int, item: Item) -> tuple[Item, ...]:
    return (*items[:at], item, *items[at + 1 :])


class Model:
    """What may happen in a world. Every step is one event at one place."""

    def __init__(self, size: Size, rules: Rules | None = None) -> None:
        self.size = size
        self.rules = rules or Rules()
        self._nodes = range(size.replicas)
        self._followers = range(1, size.replicas)

    def start(self) -> World:
        size = self.size
        left = Left(
            size.records,
            size.restarts,
            size.lost_tails,
            size.write_failures,
            size.isr_changes,
            size.fences,
            size.planned_seals,
            size.segments - 1,
        )
        return self._opened(0, tuple(Replica() for _ in self._nodes), frozenset(), left)

    def _opened(
        self, segment: int, replicas: tuple[Replica, ...], messages: frozenset[Message], left: Left
    ) -> World:
        """A new segment: empty logs, everyone in sync, each with its present incarnation."""
        incarnations = tuple(replica.incarnation for replica in replicas)
        isr = frozenset(enumerate(incarnations))
        nothing = (None,) * self.size.replicas
        return World(
            segment=segment,
            replicas=tuple(each._replace(log=(), durable=0, fence=0) for each in replicas),
            leader=Leader(True, isr, 0, None, nothing),
            record=Record(False, 0, 0, isr, incarnations),
            controller=Controller(answers=nothing),
            messages=messages,
            promised=(),
            left=left,
        )

    # What holds in every state

    def violation(self, world: World) -> str | None:
        """What is wrong with this world, if anything."""
        longest: Ids = max((each.log for each in world.replicas), key=len)
        for node, replica in enumerate(world.replicas):
            if replica.log != longest[: len(replica.log)]:
                return f"replica {node} has {replica.log}, another one {longest}: they diverged"
        content, promised = world.record.content, world.promised
        if world.record.seals > 1:
            return "sealed twice"
        if content is not None and content[: len(promised)] != promised:
            return f"sealed with {content}, promised was {promised}"
        if promised[: len(longest)] != longest[: len(promised)]:
            return f"replicas have {longest}, promised was {promised}"
        mark = world.leader.high_watermark
        for node, incarnation in world.record.isr:
            replica = world.replicas[node]
            if replica.incarnation == incarnation and replica.durable < mark:
                return f"replica {node} in the ISR has {replica.durable}, high watermark {mark}"
        return None

    # What may happen next

    def steps(self, world: World) -> Iterator[Step]:
        yield from self._append(world)
        yield from self._fetch(world)
        yield from self._change_isr(world)
        yield from self._restart(world)
        yield from self._plan(world)
        yield from self._seal(world)
        for message in world.messages:
            kind, segment = message[:2]
            if segment == world.segment or not self.rules.messages_name_segment:
                rest = world._replace(messages=world.messages - {message})
                yield from getattr(self, f"_on_{kind}")(rest, *message[2:])

    def _send(self, world: World, kind: str, *content: object) -> World:
        return world._replace(messages=world.messages | {(kind, world.segment, *content)})

    # Appends

    def _append(self, world: World) -> Iterator[Step]:
        """The leader stages a record, which followers may fetch; then its disk has it, or fails."""
        if not world.leader.is_leading:
            return
        replica, left = world.replicas[LEADER], world.left
        is_frozen = world.leader.is_frozen and self.rules.frozen_until_known
        if left.records and not is_frozen:
            record = 10 * world.segment + left.records
            grown = replica._replace(log=(*replica.log, record))
            yield (
                f"append {record}",
                world._replace(
                    replicas=put(world.replicas, LEADER, grown),
                    left=left._replace(records=left.records - 1),
                ),
            )
        if replica.durable < len(replica.log):
            synced = replica._replace(durable=len(replica.log))
            replicas = put(world.replicas, LEADER, synced)
            yield "leader syncs", self._marked(world._replace(replicas=replicas))
            if left.write_failures:
                reopened = replica._replace(log=replica.log[: replica.durable])
                goes_on = not self.rules.failed_leader_resigns
                yield (
                    "the leader's write fails",
                    world._replace(
                        replicas=put(world.replicas, LEADER, reopened),
                        leader=world.leader._replace(is_leading=goes_on),
                        left=left._replace(write_failures=left.write_failures - 1),
                    ),
                )

    def _marked(self, world: World) -> World:
        """Both marks moved as far as the reports allow, and what they cover promised."""
        leader = world.leader
        if not leader.is_leading:
            return world
        durable = world.replicas[LEADER].durable
        high = max(leader.high_watermark, self._high_watermark(leader, durable))
        quorum = max(leader.quorum_mark, self._quorum_mark(world, durable))
        shown = world.replicas[LEADER].log[: max(high, quorum)]
        return world._replace(
            leader=leader._replace(high_watermark=high, quorum_mark=quorum),
            promised=shown if len(shown) > len(world.promised) else world.promised,
        )

    def _high_watermark(self, leader: Leader, durable: int) -> int:
        members = leader.isr
        if leader.proposed is not None:
            is_maximal = self.rules.isr_is_maximal
            members = members | leader.proposed if is_maximal else leader.proposed
        lowest = durable
        for node, incarnation in members:
            report = leader.reports[node]
            if node == LEADER:
                continue
            if report is None or report.incarnation != incarnation:
                if self.rules.silent_members_count:
                    return 0
                continue
            lowest = min(lowest, report.end)
        return lowest

    def _quorum_mark(self, world: World, durable: int) -> int:
        leader, opened = world.leader, world.record.opened
        nodes = set(self._nodes)
        needed = self.size.quorum
        if not self.rules.quorum_is_of_replicas:
            nodes = {node for node, _ in leader.isr}
            needed = len(nodes) // 2 + 1
        ends = [durable]
        for node in nodes - {LEADER}:
            report = leader.reports[node]
            if report is not None and self._counts(node, report, leader.isr, opened):
                ends.append(report.end)
        ends.sort(reverse=True)
        return ends[needed - 1] if len(ends) >= needed else 0

    def _counts(self, node: int, report: Report, isr: Members, opened: tuple[int, ...]) -> bool:
        """Has this replica kept all that was durable since it was listed?"""
        listed = max([opened[node], *(inc for each, inc in isr if each == node)])
        return report.continuous_since <= listed or not self.rules.lost_tails_do_not_count

    # Fetches

    def _fetch(self, world: World) -> Iterator[Step]:
        for node in self._followers:
            replica = world.replicas[node]
            is_waiting = any(
                message[0] in ("fetch", "data") and message[2:4] == (node, replica.incarnation)
                for message in world.messages
            )
            report = Report(replica.durable, replica.incarnation, replica.continuous_since)
            has_more = len(world.replicas[LEADER].log) > len(replica.log)
            is_news = has_more or world.leader.reports[node] != report
            may_fetch = replica.fence == 0 or not self.rules.fenced_replicas_stop
            if may_fetch and not is_waiting and world.leader.is_leading and is_news:
                sent = self._send(world, "fetch", node, replica.incarnation, report)
                yield f"{node} fetches from {report.end}", sent

    def _on_fetch(
        self, world: World, node: int, incarnation: int, report: Report
    ) -> Iterator[Step]:
        """The reported end is the follower's acknowledgement of everything below it."""
        leader = world.leader
        known = leader.reports[node]
        if not leader.is_leading or (known is not None and known.incarnation > incarnation):
            return
        if known is None or known.incarnation < incarnation or known.end < report.end:
            leader = leader._replace(reports=put(leader.reports, node, report))
        told = self._marked(world._replace(leader=leader))
        records = world.replicas[LEADER].log[report.end :]
        if records:
            told = self._send(told, "data", node, incarnation, report.end, records)
        yield f"leader hears that {node} has {report.end}", told

    def _on_data(
        self, world: World, node: int, incarnation: int, at: int, records: Ids
    ) -> Iterator[Step]:
        replica = world.replicas[node]
        if replica.incarnation != incarnation or len(replica.log) != at:
            return
        if replica.fence and self.rules.fenced_replicas_stop:
            return
        log = replica.log + records
        grown = replica._replace(log=log, durable=len(log))
        replicas = put(world.replicas, node, grown)
        yield f"{node} stores {records}", world._replace(replicas=replicas)

    # In-sync replicas

    def _change_isr(self, world: World) -> Iterator[Step]:
        leader, left = world.leader, world.left
        if not leader.is_leading or leader.proposed is not None or not left.isr_changes:
            return
        for proposed in self._proposals(leader):
            changed = world._replace(
                leader=leader._replace(proposed=proposed),
                left=left._replace(isr_changes=left.isr_changes - 1),
            )
            sent = self._send(self._marked(changed), "isr", leader.epoch, proposed)
            yield f"leader proposes the ISR {sorted(proposed)}", sent

    def _proposals(self, leader: Leader) -> Iterator[Members]:
        for node, incarnation in leader.isr:
            if node != LEADER and len(leader.isr) > self.size.min_in_sync:
                yield leader.isr - {(node, incarnation)}
        goal = leader.high_watermark
        if self.rules.both_marks_before_isr:
            goal = max(goal, leader.quorum_mark)
        for node in self._followers:
            report = leader.reports[node]
            if report is None or (node, report.incarnation) in leader.isr or report.end < goal:
                continue
            others = frozenset(each for each in leader.isr if each[0] != node)
            yield others | {(node, report.incarnation)}

    def _on_isr(self, world: World, epoch: int, proposed: Members) -> Iterator[Step]:
        """The store compares the epoch; the leader reads the record and obeys it."""
        record = world.record
        if record.epoch == epoch and not record.is_sealed:
            record = record._replace(isr=proposed, epoch=epoch + 1)
        changed = world._replace(record=record)
        yield "the store has the ISR, its answer is lost", changed
        if record.fence == 0:
            known = world.leader._replace(isr=record.isr, epoch=record.epoch, proposed=None)
            heard = self._marked(changed._replace(leader=known))
            yield "the store has the ISR, the leader hears it", heard

    # Restarts

    def _restart(self, world: World) -> Iterator[Step]:
        if not world.left.restarts:
            return
        for node in self._nodes:
            replica = world.replicas[node]
            again = world._replace(
                left=world.left._replace(restarts=world.left.restarts - 1),
            )
            if node == LEADER:
                again = again._replace(leader=self._leader_again(world))
            for end in range(len(replica.log) + 1):
                is_lost = end < replica.durable
                if is_lost and not world.left.lost_tails:
                    continue
                restarted = self._restarted(replica, end, is_lost)
                left = again.left
                if is_lost:
                    left = left._replace(lost_tails=left.lost_tails - 1)
                replicas = put(world.replicas, node, restarted)
                yield (
                    f"{node} restarts with {end} of {replica.durable} durable records",
                    again._replace(replicas=replicas, left=left),
                )

    def _restarted(self, replica: Replica, end: int, is_lost: bool) -> Replica:
        incarnation = replica.incarnation + 1
        return Replica(
            log=replica.log[:end],
            durable=end,
            fence=replica.fence if self.rules.fence_is_persisted else 0,
            incarnation=incarnation,
            continuous_since=incarnation if is_lost else replica.continuous_since,
        )

    def _leader_again(self, world: World) -> Leader:
        """The leader's state in its next life: none, or a new one of a leader that goes on."""
        goes_on = not self.rules.restarted_leader_resigns and world.record.fence == 0
        record, nothing = world.record, (None,) * self.size.replicas
        return Leader(goes_on, record.isr, record.epoch, None, nothing)

    # Fencing and sealing

    def _seal(self, world: World) -> Iterator[Step]:
        left, record, controller = world.left, world.record, world.controller
        if record.is_sealed:
            if left.segments and not self._is_leading_still(world):
                left = left._replace(
                    segments=left.segments - 1,
                    records=self.size.records,
                    fences=self.size.fences,
                )
                opened = self._opened(world.segment + 1, world.replicas, world.messages, left)
                yield "the next segment is opened", opened
        elif left.fences:
            fence = record.fence + 1
            answers: tuple[Report | None, ...] = (None,) * self.size.replicas
            yield (
                f"a controller fences with {fence}",
                world._replace(
                    record=record._replace(fence=fence, epoch=record.epoch + 1),
                    controller=Controller(fence=fence, answers=answers),
                    left=left._replace(fences=left.fences - 1),
                ),
            )
        if controller.fence:
            yield from self._fence(world)
            if controller.fence == record.fence and not record.is_sealed:
                yield from self._end(world)

    def _is_leading_still(self, world: World) -> bool:
        """A leader that nobody has told is a matter of the segment it led, which is searched."""
        return world.leader.is_leading

    def _fence(self, world: World) -> Iterator[Step]:
        fence = world.controller.fence
        for node in self._nodes:
            replica = world.replicas[node]
            if replica.fence >= fence:
                continue
            fenced = replica._replace(fence=fence, durable=len(replica.log))
            told = world._replace(replicas=put(world.replicas, node, fenced))
            if node == LEADER:
                told = told._replace(leader=world.leader._replace(is_leading=False))
            report = Report(fenced.durable, fenced.incarnation, fenced.continuous_since)
            yield f"{node} is fenced", self._send(told, "answer", node, fence, report)

    def _on_answer(self, world: World, node: int, fence: int, report: Report) -> Iterator[Step]:
        controller = world.controller
        if controller.fence == fence and controller.content is None:
            answers = put(controller.answers, node, report)
            heard = world._replace(controller=controller._replace(answers=answers))
            yield f"the controller hears that {node} has {report.end}", heard

    def _end(self, world: World) -> Iterator[Step]:
        """E is decided and found, copied to enough replicas, and sealed by one transaction."""
        controller = world.controller
        if controller.content is None:
            end = self._decided(world)
            if end is None:
                return
            for replica in world.replicas:
                if len(replica.log) >= end and replica.fence == controller.fence:
                    content = replica.log[:end]
                    decided = controller._replace(content=content)
                    yield f"the end is {end}", world._replace(controller=decided)
                    return
            return
        yield from self._copy(world, controller.content)
        if len(controller.confirmed) >= min(self.size.min_in_sync, self.size.replicas):
            sent = self._send(world, "seal", controller.fence, controller.content)
            done = sent._replace(controller=Controller(answers=(None,) * self.size.replicas))
            yield "the controller seals", done

    def _decided(self, world: World) -> int | None:
        record, answers = world.record, world.controller.answers
        counting = {
            node: report
            for node, report in enumerate(answers)
            if report is not None and self._counts(node, report, record.isr, record.opened)
        }
        in_sync = [counting[node].end for node, _ in record.isr if node in counting]
        needed = self.size.replicas - self.size.quorum + 1
        if not self.rules.majority_answers_fence:
            needed = 1
        if len(counting) < needed or (not in_sync and self.rules.isr_member_answers_fence):
            return None
        ends = [report.end for report in answers if report is not None]
        return max(ends) if self.rules.end_is_greatest else (in_sync or ends)[0]

    def _copy(self, world: World, content: Ids) -> Iterator[Step]:
        """Copies what a replica lacks up to E, and hears that it has all of it."""
        controller = world.controller
        has_source = any(each.log[: len(content)] == content for each in world.replicas)
        for node in self._nodes:
            replica = world.replicas[node]
            if node in controller.confirmed or replica.fence != controller.fence or not has_source:
                continue
            log = replica.log if len(replica.log) >= len(content) else content
            whole = replica._replace(log=log, durable=len(log))
            confirmed = controller._replace(confirmed=controller.confirmed | {node})
            yield (
                f"{node} has all up to the end",
                world._replace(replicas=put(world.replicas, node, whole), controller=confirmed),
            )

    def _on_seal(self, world: World, fence: int, content: Ids) -> Iterator[Step]:
        record = world.record
        is_current = record.fence == fence and not record.is_sealed
        if not is_current and self.rules.seal_compares_fence:
            return
        yield f"sealed with {content}", self._sealed(world, content)

    def _sealed(self, world: World, content: Ids) -> World:
        record = world.record
        return world._replace(
            record=record._replace(
                is_sealed=True, content=content, epoch=record.epoch + 1, seals=record.seals + 1
            )
        )

    # Planned seals

    def _plan(self, world: World) -> Iterator[Step]:
        """The leader freezes, and once every member of the ISR has all, it asks for the seal."""
        leader, left, replica = world.leader, world.left, world.replicas[LEADER]
        if not leader.is_leading:
            return
        if left.planned_seals and not leader.is_frozen:
            frozen = leader._replace(is_frozen=True)
            left = left._replace(planned_seals=left.planned_seals - 1)
            yield "the leader freezes", world._replace(leader=frozen, left=left)
        is_sent = any(message[0] == "plan" for message in world.messages)
        is_synced = replica.durable == len(replica.log)
        is_whole = leader.high_watermark == replica.durable and leader.proposed is None
        is_ready = is_whole or not self.rules.planned_seal_waits_for_isr
        if leader.is_frozen and not is_sent and is_synced and is_ready:
            sent = self._send(world, "plan", leader.epoch, replica.log, leader.isr)
            yield "the leader asks for a seal", sent

    def _on_plan(self, world: World, epoch: int, content: Ids, members: Members) -> Iterator[Step]:
        """The leader that hears of it lets the segment go; one that does not hear stays frozen."""
        record = world.record
        if self.rules.planned_seal_compares_epoch and (record.epoch != epoch or record.is_sealed):
            return
        sealed = self._sealed(world, content)
        holders = [
            world.replicas[node]
            for node, incarnation in members
            if world.replicas[node].incarnation == incarnation
        ]
        if any(replica.durable < len(content) for replica in holders):
            sealed = sealed._replace(promised=(*content, -1))  # A listed replica lacks records.
        yield f"sealed as planned with {content}", sealed
