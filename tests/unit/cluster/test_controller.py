"""The controller: many seals with few messages, thresholds, and losses that are accepted."""

from __future__ import annotations

from dataclasses import replace

from firnmq.cluster.replication import Controller, Durability
from firnmq.cluster.replication.actions import Action, ChooseNext, Send, Transact
from firnmq.cluster.replication.events import (
    AcceptLoss,
    NextChosen,
    NodeSeen,
    Outcome,
    Received,
    RecordSeen,
    Tick,
    TransactionDone,
)
from firnmq.cluster.replication.messages import (
    CopyTail,
    FenceAnswer,
    FenceAnswers,
    FenceRequest,
    SealReason,
    SealRequest,
    TailCopied,
)
from firnmq.cluster.replication.values import (
    Fence,
    Incarnation,
    MonotonicMs,
    NodeId,
    RecordState,
    ReplicatedSegment,
    Revision,
)
from tests.unit.cluster.segments import CONFIG, START, at, member, of_kind, placement, record

ALIVE = {NodeId(node): Incarnation(1) for node in (1, 2, 3)}


class Driver:
    """Applies every transaction at once, unless told otherwise."""

    def __init__(self, *records: ReplicatedSegment, durability: Durability = Durability.FSYNC):
        config = replace(CONFIG, durability=durability)
        self.controller = Controller(NodeId(2), Revision(5), ALIVE, lambda segment: config)
        self.records = {each.segment: each for each in records}
        self.outcome = Outcome.APPLIED
        self.transactions: list[Transact] = []
        self.sent: list[Send] = []
        self.chosen: list[ChooseNext] = []
        for each in records:
            self.give(RecordSeen(record=each))

    def give(self, event, now: int = START) -> list[Action]:  # type: ignore[no-untyped-def]
        actions = self.controller.handle(event, MonotonicMs(now))
        self.sent += of_kind(actions, Send)
        self.chosen += of_kind(actions, ChooseNext)
        for transact in of_kind(actions, Transact):
            self.transactions.append(transact)
            if self.outcome is Outcome.APPLIED:
                for change in transact.changes:
                    self.records[change.after.segment] = change.after
            done = TransactionDone(owner=None, number=transact.number, outcome=self.outcome)
            actions += self.give(done, now)
        return actions

    def answer(self, of: ReplicatedSegment, node: int, end: int, *, since: int = 1) -> None:
        answer = FenceAnswer(
            segment=of.segment,
            fence=Fence(self.records[of.segment].fence),
            node=NodeId(node),
            incarnation=Incarnation(max(1, since)),
            continuous_since=Incarnation(since),
            at=at(end),
        )
        self.give(Received(message=FenceAnswers(answers=(answer,))))

    def messages(self, kind: type) -> list:  # type: ignore[type-arg]
        return [each.message for each in self.sent if isinstance(each.message, kind)]

    def seal(self, of: ReplicatedSegment) -> None:
        self.give(NextChosen(segment=of.segment, placement=placement((2, 3))))


def lose_leader(driver: Driver) -> None:
    driver.give(NodeSeen(node=NodeId(1), incarnation=None))


def test_three_hundred_lost_leaders_are_fenced_by_one_message_per_node() -> None:
    records = [record(shard=shard) for shard in range(300)]
    driver = Driver(*records)
    lose_leader(driver)
    assert [len(each.changes) for each in driver.transactions] == [40] * 7 + [20]
    assert all(each.guard == Revision(5) for each in driver.transactions)
    fences = driver.messages(FenceRequest)
    # One per node for each transaction that was applied.
    assert len(fences) == 3 * 8
    assert sum(len(each.segments) for each in fences) == 900


def test_one_refused_change_does_not_hold_up_the_others() -> None:
    driver = Driver(*(record(shard=shard) for shard in range(3)))
    driver.outcome = Outcome.REFUSED
    lose_leader(driver)
    assert [len(each.changes) for each in driver.transactions] == [3, 1, 1, 1]


def test_a_seal_needs_a_counting_isr_member_and_a_counting_majority() -> None:
    of = record()
    driver = Driver(of)
    lose_leader(driver)
    driver.answer(of, 2, 105)
    assert driver.chosen == []
    driver.answer(of, 3, 107, since=2)  # It lost its tail, and does not count.
    assert driver.chosen == []
    driver.answer(of, 1, 106)
    (copy, other) = driver.messages(CopyTail)
    assert {copy.end, other.end} == {107}  # The greatest end of all answers.
    copied = TailCopied(
        segment=of.segment,
        fence=Fence(1),
        node=NodeId(2),
        incarnation=Incarnation(1),
        at=at(107),
    )
    driver.give(Received(message=copied))
    assert [each.holders for each in driver.chosen] == [(member(2), member(3, 2))]
    driver.seal(of)
    sealed = driver.records[of.segment]
    assert (sealed.state, sealed.sealed_at, sealed.lossy) == (RecordState.SEALED, at(107), False)
    assert driver.controller.seals == {}


def test_answers_to_another_fence_are_not_used() -> None:
    of = record()
    driver = Driver(of)
    lose_leader(driver)
    stale = driver.records[of.segment]
    driver.answer(replace(stale, fence=Fence(7)), 2, 105)
    answer = FenceAnswer(
        segment=of.segment,
        fence=Fence(9),
        node=NodeId(3),
        incarnation=Incarnation(1),
        continuous_since=Incarnation(1),
        at=at(105),
    )
    driver.give(Received(message=FenceAnswers(answers=(answer,))))
    assert driver.chosen == []


def test_an_interrupted_seal_begins_again_with_the_next_fence() -> None:
    of = record()
    driver = Driver(of.fencing())
    assert driver.records[of.segment].fence == 2
    assert all(each.segments[0].fence == 2 for each in driver.messages(FenceRequest))


def test_a_tail_that_cannot_be_copied_makes_the_seal_begin_again() -> None:
    of = record()
    driver = Driver(of)
    lose_leader(driver)
    driver.answer(of, 2, 105)
    driver.answer(of, 3, 107)
    driver.give(Tick(), START + CONFIG.copy_timeout_ms)
    assert driver.records[of.segment].fence == 2


def test_a_deposed_controller_does_nothing_more() -> None:
    driver = Driver(record())
    driver.outcome = Outcome.DEPOSED
    lose_leader(driver)
    assert driver.controller.is_deposed
    assert driver.give(Tick(), START + 60_000) == []


def lost_everywhere(durability: Durability) -> tuple[Driver, ReplicatedSegment]:
    of = record()
    driver = Driver(of, durability=durability)
    lose_leader(driver)
    driver.answer(of, 2, 105, since=2)
    driver.answer(of, 3, 105, since=2)
    assert driver.chosen == []  # Not all of them have answered.
    driver.answer(of, 1, 100, since=2)
    return driver, of


def test_a_loss_of_unsynced_records_is_accepted_once_all_have_answered() -> None:
    driver, of = lost_everywhere(Durability.OS)
    driver.seal(of)
    assert driver.records[of.segment].lossy
    assert driver.records[of.segment].sealed_at == at(105)


def test_a_loss_of_synced_records_waits_for_an_operator() -> None:
    driver, of = lost_everywhere(Durability.FSYNC)
    assert driver.chosen == []
    driver.give(AcceptLoss(segment=of.segment))
    driver.seal(of)
    assert driver.records[of.segment].lossy


def test_a_segment_below_its_minimum_is_sealed_only_if_the_next_one_can_be_written() -> None:
    of = record()
    request = Received(message=SealRequest(segment=of.segment, reason=SealReason.BELOW_MIN_IN_SYNC))
    alone = Driver(of)
    for node in (2, 3):
        alone.give(NodeSeen(node=NodeId(node), incarnation=None))
    alone.give(request)
    assert alone.transactions == []
    able = Driver(of)
    able.give(NodeSeen(node=NodeId(3), incarnation=None))
    able.give(request)
    assert len(able.transactions) == 1


def test_an_old_record_does_not_begin_a_finished_seal_again() -> None:
    of = record()
    driver = Driver(of)
    lose_leader(driver)
    driver.answer(of, 2, 105)
    driver.answer(of, 3, 105)
    driver.seal(of)
    count = len(driver.transactions)
    for old in (of, of.fencing()):  # The watch is behind.
        driver.give(RecordSeen(record=old))
    assert len(driver.transactions) == count
    assert driver.controller.seals == {}
