"""A segment's leader: what it acknowledges, shows, refuses and asks for."""

from __future__ import annotations

import pytest

from firnmq.cluster.replication import Refusal
from firnmq.cluster.replication.actions import (
    AdvanceHighWatermark,
    Complete,
    Fail,
    FailReason,
    LogEvent,
    ReadRecord,
    SendToController,
    ServeFetch,
    StopLeading,
    Transact,
    Unfreeze,
)
from firnmq.cluster.replication.events import (
    BeginSeal,
    LeadershipLost,
    Outcome,
    RecordSeen,
    SessionRenewed,
    StorageFailed,
    StorageReopened,
    Tick,
    TransactionDone,
)
from firnmq.cluster.replication.leading.state import LEADER_TRANSITIONS, LeaderState, LeaderStep
from firnmq.cluster.replication.messages import SealReason
from firnmq.cluster.replication.values import NO_FENCE, Acks, Crc, MonotonicMs, Point, RecordState
from firnmq.ids import Offset
from firnmq.transitions import IllegalTransition
from tests.unit.cluster.segments import (
    CONFIG,
    START,
    at,
    leader,
    member,
    of_kind,
    placement,
    record,
    report,
    stage,
    sync,
)


def completed(actions: list) -> list[int]:  # type: ignore[type-arg]
    return [token for action in of_kind(actions, Complete) for token in action.tokens]


def failed(actions: list) -> list[tuple[int, FailReason]]:  # type: ignore[type-arg]
    return [(token, each.reason) for each in of_kind(actions, Fail) for token in each.tokens]


def test_all_is_acknowledged_once_every_member_of_the_isr_has_it() -> None:
    machine = leader()
    stage(machine, 105)
    assert completed(sync(machine, 105)) == []
    assert completed(report(machine, 2, 105)) == []  # 3 was never heard from.
    actions = report(machine, 3, 105)
    assert completed(actions) == [105]
    kinds = [type(action) for action in actions]
    assert kinds.index(AdvanceHighWatermark) < kinds.index(Complete)


def test_quorum_is_acknowledged_by_a_majority_and_is_not_readable_yet() -> None:
    machine = leader()
    stage(machine, 105, Acks.QUORUM)
    sync(machine, 105)
    assert completed(report(machine, 2, 105)) == [105]
    assert (machine.quorum_mark, machine.high_watermark) == (105, 100)


def test_a_quorum_may_be_had_before_the_leaders_own_disk() -> None:
    machine = leader()
    stage(machine, 105, Acks.QUORUM)
    report(machine, 2, 105)
    assert completed(report(machine, 3, 105)) == [105]


def test_one_is_acknowledged_by_the_leaders_disk_while_its_session_is_young() -> None:
    machine = leader()
    stage(machine, 105, Acks.LEADER)
    assert completed(sync(machine, 105)) == [105]
    old = MonotonicMs(START + CONFIG.session_age_max_ms + 1)
    assert machine.refusal(Acks.LEADER, old) is Refusal.SESSION_TOO_OLD
    machine.handle(SessionRenewed(asked_ms=old), old)
    assert machine.refusal(Acks.LEADER, old) is None


def test_a_replica_that_lost_its_tail_does_not_count_for_a_quorum() -> None:
    machine = leader()
    stage(machine, 105, Acks.QUORUM)
    sync(machine, 105)
    assert completed(report(machine, 2, 105, incarnation=2, since=2)) == []
    assert completed(report(machine, 3, 105)) == [105]


def test_a_report_costs_what_it_acknowledges() -> None:
    machine = leader(record((1, 2)))
    for end in range(101, 1_101):
        stage(machine, end)
    sync(machine, 1_100)
    assert completed(report(machine, 2, 103)) == [101, 102, 103]
    assert machine.waiting_count == 997
    assert len(report(machine, 2, 1_100)) == 2  # One mark and one completion for all the rest.
    assert machine.waiting_count == 0


def test_a_late_request_is_unknown_and_found_by_one_sweep() -> None:
    machine = leader()
    stage(machine, 105, wait_ms=1_000)
    stage(machine, 106, wait_ms=50)
    assert failed(machine.handle(Tick(), MonotonicMs(START + 49))) == []
    actions = machine.handle(Tick(), MonotonicMs(START + 50))
    assert failed(actions) == [(106, FailReason.TIMED_OUT)]
    assert machine.waiting_count == 1


def test_a_fetch_waits_for_the_next_append() -> None:
    machine = leader()
    assert of_kind(report(machine, 2, 100), ServeFetch) == []
    (served,) = of_kind(stage(machine, 105), ServeFetch)
    assert (served.start, served.at, served.to) == (100, at(105), member(2))
    assert of_kind(stage(machine, 106), ServeFetch) == []  # It was answered.


def test_a_report_that_differs_is_not_believed() -> None:
    machine = leader()
    stage(machine, 105)
    sync(machine, 105)
    actions = report(machine, 2, 105, point=Point(Offset(105), Crc(1)))
    assert [event.name for event in of_kind(actions, LogEvent)] == ["replica_diverged"]
    assert machine.marks.followers == {}


def test_the_isr_shrinks_after_lag_and_never_below_the_minimum() -> None:
    machine = leader()
    for now in range(START, START + CONFIG.replica_lag_max_ms + 1_000, 500):
        report(machine, 2, 100, now=now)
    late = MonotonicMs(START + CONFIG.replica_lag_max_ms + 1_000)
    (transact,) = of_kind(machine.handle(Tick(), late), Transact)
    assert transact.changes[0].after.isr == (member(1), member(2))
    assert transact.guard == member(1)
    machine.handle(
        TransactionDone(
            owner=machine.record.segment, number=transact.number, outcome=Outcome.APPLIED
        ),
        late,
    )
    later = MonotonicMs(late + CONFIG.replica_lag_max_ms + 1_000)
    actions = machine.handle(Tick(), later)
    assert of_kind(actions, Transact) == []
    (request,) = of_kind(actions, SendToController)
    assert request.message.reason is SealReason.BELOW_MIN_IN_SYNC


def test_a_follower_is_let_in_at_both_marks_only() -> None:
    machine = leader()
    stage(machine, 105, Acks.QUORUM)
    sync(machine, 105)
    report(machine, 2, 105)  # The quorum mark is 105, the high watermark 100.
    assert of_kind(report(machine, 3, 100, incarnation=2, since=2), Transact) == []
    (transact,) = of_kind(report(machine, 3, 105, incarnation=2, since=2), Transact)
    assert member(3, 2) in transact.changes[0].after.isr


def test_an_unknown_outcome_keeps_both_isrs_until_the_record_changes() -> None:
    machine = leader()
    stage(machine, 105)
    sync(machine, 105)
    (transact,) = of_kind(report(machine, 3, 100, incarnation=2), Transact)
    both = {*machine.record.isr, member(3, 2)}
    assert machine.maximal_isr == both
    owner = machine.record.segment
    done = TransactionDone(owner=owner, number=transact.number, outcome=Outcome.UNKNOWN)
    assert of_kind(machine.handle(done, START), ReadRecord)
    machine.handle(RecordSeen(record=machine.record), START)  # Unchanged: it may come yet.
    assert machine.maximal_isr == both
    (again,) = of_kind(machine.handle(Tick(), MonotonicMs(START + 5_000)), Transact)
    assert again.changes == transact.changes
    machine.handle(RecordSeen(record=transact.changes[0].after), START)
    assert machine.maximal_isr == set(transact.changes[0].after.isr)


def seal(machine) -> Transact:  # type: ignore[no-untyped-def]
    event = BeginSeal(segment=machine.record.segment, placement=placement())
    machine.handle(event, START)
    assert machine.refusal(Acks.ALL, START) is Refusal.FROZEN
    report(machine, 2, 105)
    (transact,) = of_kind(report(machine, 3, 105), Transact)
    return transact


def test_a_planned_seal_freezes_waits_compares_and_opens_the_next_segment() -> None:
    machine = leader()
    stage(machine, 105)
    sync(machine, 105)
    transact = seal(machine)
    change = transact.changes[0]
    assert change.after.state is RecordState.SEALED
    assert change.after.sealed_at == at(105)
    assert change.opened is not None
    assert (change.opened.start, change.opened.leader_epoch) == (105, 1)
    owner = machine.record.segment
    done = TransactionDone(owner=owner, number=transact.number, outcome=Outcome.APPLIED)
    assert of_kind(machine.handle(done, START), StopLeading)
    assert machine.state is LeaderState.RELEASED


def test_a_planned_seal_of_unknown_outcome_stays_frozen() -> None:
    machine = leader()
    stage(machine, 105)
    sync(machine, 105)
    transact = seal(machine)
    owner = machine.record.segment
    done = TransactionDone(owner=owner, number=transact.number, outcome=Outcome.UNKNOWN)
    machine.handle(done, START)
    machine.handle(RecordSeen(record=machine.record), START)
    for later in range(START, START + 60_000, 1_000):
        assert of_kind(machine.handle(Tick(), MonotonicMs(later)), Unfreeze) == []
        assert machine.refusal(Acks.LEADER, MonotonicMs(later)) is Refusal.FROZEN


def test_a_freeze_that_takes_too_long_is_given_up() -> None:
    machine = leader()
    stage(machine, 105)
    machine.handle(BeginSeal(segment=machine.record.segment, placement=placement()), START)
    late = MonotonicMs(START + CONFIG.freeze_max_ms)
    assert of_kind(machine.handle(Tick(), late), Unfreeze)
    assert machine.state is LeaderState.LEADING


def test_a_restarted_leader_resigns_and_says_so_until_it_is_heard() -> None:
    machine = leader(own=member(1, 2))
    assert machine.state is LeaderState.RESIGNED
    (request,) = of_kind(machine.take_actions(), SendToController)
    assert request.message.reason is SealReason.LEADER_RESTARTED
    assert machine.refusal(Acks.LEADER, START) is Refusal.NOT_LEADING
    again = machine.handle(Tick(), MonotonicMs(START + CONFIG.retry_ms))
    assert of_kind(again, SendToController)
    machine.handle(RecordSeen(record=machine.record.fencing()), START)
    quiet = machine.handle(Tick(), MonotonicMs(START + 10 * CONFIG.retry_ms))
    assert of_kind(quiet, SendToController) == []


def test_the_only_replica_goes_on_after_a_restart_and_after_a_failed_write() -> None:
    machine = leader(record((1,)), own=member(1, 2))
    assert machine.state is LeaderState.LEADING
    stage(machine, 105)
    segment = machine.record.segment
    actions = machine.handle(StorageFailed(segment=segment), START)
    assert failed(actions) == [(105, FailReason.STORAGE_FAILED)]
    assert machine.refusal(Acks.ALL, START) is Refusal.NOT_LEADING
    machine.handle(StorageReopened(segment=segment, at=at(100), fence=NO_FENCE), START)
    assert machine.refusal(Acks.ALL, START) is None


def test_a_leader_with_followers_resigns_after_a_failed_write() -> None:
    machine = leader()
    stage(machine, 105)
    actions = machine.handle(StorageFailed(segment=machine.record.segment), START)
    assert failed(actions) == [(105, FailReason.STORAGE_FAILED)]
    assert machine.state is LeaderState.RESIGNED
    assert of_kind(actions, SendToController)


def test_a_fenced_leader_takes_nothing_and_acknowledges_nothing() -> None:
    machine = leader()
    stage(machine, 105)
    sync(machine, 105)
    report(machine, 2, 105)
    actions = machine.handle(LeadershipLost(segment=machine.record.segment), START)
    assert failed(actions) == [(105, FailReason.LEADERSHIP_LOST)]
    assert completed(report(machine, 3, 105)) == []
    with pytest.raises(IllegalTransition):
        stage(machine, 106)
    assert machine.staged == at(105)


def test_every_illegal_step_raises_and_changes_nothing() -> None:
    legal = set(LEADER_TRANSITIONS.table)
    for state in LeaderState:
        for step in LeaderStep:
            if (state, step) not in legal:
                with pytest.raises(IllegalTransition):
                    LEADER_TRANSITIONS.next(state, step)
