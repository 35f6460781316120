"""The rules of a single transactional id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions import (
    IllegalTransition,
    TransactionConfig,
    TransactionSnapshot,
    TransactionState,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.brokers.kafka.transactions.machine import WAITING_MAX
from firnmq.brokers.kafka.transactions.messages import Erase, Save
from firnmq.brokers.kafka.transactions.snapshot import EPOCH_MAX
from firnmq.brokers.kafka.transactions.state import PREPARED, Step, next_state
from firnmq.errors import Corruption
from tests.unit.brokers.kafka.transactions.stage import TIMEOUT_MS, Instance, Stage, partition


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def producer(stage: Stage) -> Instance:
    return Instance(stage.ask(stage.init()))


# Initialising -------------------------------------------------------------------------------------


def test_each_instance_gets_the_next_epoch(stage: Stage) -> None:
    first = stage.ask(stage.init())
    second = stage.ask(stage.init())
    assert (first.producer_id, first.epoch) == (100, 0)
    assert (second.producer_id, second.epoch) == (100, 1)
    assert stage.state is TransactionState.EMPTY


def test_an_identity_is_saved_before_it_is_given_out(stage: Stage) -> None:
    token = stage.start(stage.init())
    assert token not in stage.replies
    save = stage.saved()
    assert isinstance(save, Save)
    assert save.snapshot.epoch == stage.replies[token].epoch


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_time_outs_are_bounded(stage: Stage, timeout_ms: int) -> None:
    assert stage.code(stage.init(timeout_ms=timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert stage.transaction.is_blank


def test_a_producer_may_ask_for_its_next_epoch(stage: Stage, producer: Instance) -> None:
    request = stage.init(producer_id=producer.producer_id, epoch=producer.epoch)
    bumped = stage.ask(request)
    assert bumped.epoch == 1
    assert stage.ask(request).epoch == 1, "asked again, because the answer was lost"
    stage.ask(stage.init())
    assert stage.code(request) is ErrorCode.PRODUCER_FENCED
    stranger = stage.init(producer_id=7, epoch=0)
    assert stage.code(stranger) is ErrorCode.PRODUCER_FENCED


def test_after_the_last_epoch_comes_another_id(stage: Stage) -> None:
    stage = Stage(
        TransactionSnapshot(producer_id=5, epoch=EPOCH_MAX - 1, timeout_ms=1, updated_ms=1)
    )
    assert stage.transaction.needs_producer_id
    known = stage.init(producer_id=5, epoch=EPOCH_MAX - 1)
    reply = stage.ask(known)
    assert (reply.producer_id, reply.epoch) == (100, 0)
    again = stage.ask(known)
    assert (again.producer_id, again.epoch) == (100, 0)


def test_a_new_instance_aborts_what_the_old_one_began(stage: Stage, producer: Instance) -> None:
    stage.ask(producer.add(partition()))
    assert stage.code(stage.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.state is TransactionState.COMPLETE_ABORT
    assert stage.ask(stage.init()).epoch == 2, "1 was the epoch of the marker"
    for request in (producer.add(partition()), producer.commit, producer.group("g")):
        assert stage.code(request) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_lost_track_in_mid_transaction_gets_an_epoch(
    stage: Stage, producer: Instance
) -> None:
    stage.ask(producer.add(partition()))
    request = stage.init(producer_id=producer.producer_id, epoch=producer.epoch)
    assert stage.code(request) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.ask(request).epoch == 1


# Going through a transaction ----------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_ends_with_markers_in_its_partitions(
    stage: Stage, producer: Instance, is_commit: bool
) -> None:
    stage.ask(producer.add(partition(0), partition(1)))
    stage.ask(producer.add(partition(1), partition(2)))
    assert stage.state is TransactionState.ONGOING
    token = stage.start(producer.end(is_commit=is_commit))
    assert not stage.markers, "the decision is saved first"
    stage.saved()
    assert stage.state in PREPARED
    assert token not in stage.replies
    markers = stage.marked()
    assert {each.shard for each in markers.partitions} == {"shard_0", "shard_1", "shard_2"}
    assert (markers.epoch, markers.is_commit) == (producer.epoch, is_commit)
    assert stage.replies[token].error is ErrorCode.NONE
    stage.settle()
    assert stage.code(producer.end(is_commit=is_commit)) is ErrorCode.NONE, "asked again"
    other = producer.end(is_commit=not is_commit)
    assert stage.code(other) is ErrorCode.INVALID_TXN_STATE
    assert stage.code(producer.add(partition(5))) is ErrorCode.NONE
    assert [each.shard for each in stage.snapshot.partitions] == ["shard_5"]


def test_nothing_can_end_before_it_began(stage: Stage, producer: Instance) -> None:
    assert stage.code(producer.commit) is ErrorCode.INVALID_TXN_STATE
    assert stage.code(producer.abort) is ErrorCode.INVALID_TXN_STATE
    assert stage.code(producer.offsets("g", s=1)) is ErrorCode.INVALID_TXN_STATE


def test_unknown_producers_are_told_so(stage: Stage, producer: Instance) -> None:
    producer.producer_id = 7
    assert stage.code(producer.commit) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert Stage().code(producer.commit) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_while_markers_are_written_nothing_else_happens(stage: Stage, producer: Instance) -> None:
    stage.ask(producer.add(partition()))
    stage.start(producer.commit)
    stage.saved()
    for request, code in (
        (producer.commit, ErrorCode.CONCURRENT_TRANSACTIONS),
        (producer.abort, ErrorCode.INVALID_TXN_STATE),
        (producer.add(partition(1)), ErrorCode.CONCURRENT_TRANSACTIONS),
        (producer.group("g"), ErrorCode.CONCURRENT_TRANSACTIONS),
        (stage.init(), ErrorCode.CONCURRENT_TRANSACTIONS),
    ):
        token = stage.start(request)
        assert stage.replies[token].error is code
    assert not stage.saves


def test_requests_wait_for_a_save_in_line(stage: Stage, producer: Instance) -> None:
    tokens = [stage.start(producer.add(partition(number))) for number in range(3)]
    assert len(stage.saves) == 1
    assert not set(tokens) & stage.replies.keys()
    stage.settle()
    assert [stage.replies[token].error for token in tokens] == [ErrorCode.NONE] * 3
    stage.start(producer.add(partition(9)))
    waiting = [stage.start(producer.group(f"g{number}")) for number in range(WAITING_MAX + 1)]
    assert stage.replies[waiting[-1]].error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert waiting[-2] not in stage.replies


def test_writing_needs_an_open_transaction_with_the_shard(stage: Stage, producer: Instance) -> None:
    def judge(shard: str = "shard_0", epoch: int = 0, producer_id: int = 100) -> ErrorCode:
        return stage.transaction.judge_append(producer_id, epoch, shard)

    assert judge() is ErrorCode.INVALID_TXN_STATE
    stage.start(producer.add(partition()))
    assert judge() is ErrorCode.INVALID_TXN_STATE, "not saved yet"
    stage.settle()
    assert judge() is ErrorCode.NONE
    assert judge("shard_1") is ErrorCode.INVALID_TXN_STATE
    assert judge(epoch=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert judge(producer_id=1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    stage.start(producer.commit)
    assert judge() is ErrorCode.INVALID_TXN_STATE, "from the moment it is being decided"
    stage.settle()
    assert judge() is ErrorCode.INVALID_TXN_STATE


# Offsets ------------------------------------------------------------------------------------------


def test_offsets_become_the_groups_own_with_the_decision(stage: Stage, producer: Instance) -> None:
    assert stage.code(producer.group("g")) is ErrorCode.NONE
    assert stage.state is TransactionState.ONGOING
    assert stage.code(producer.offsets("other", s=1)) is ErrorCode.INVALID_TXN_STATE
    stage.ask(producer.offsets("g", a=1, b=2))
    stage.ask(producer.offsets("g", b=3))
    stage.start(producer.commit)
    save = stage.saved()
    assert isinstance(save, Save)
    assert {shard: each.offset for shard, each in save.commits["g"].items()} == {"a": 1, "b": 3}
    assert save.snapshot.offsets == {}
    stage.settle()
    assert stage.snapshot.groups == ()


def test_aborted_offsets_are_forgotten(stage: Stage, producer: Instance) -> None:
    stage.ask(producer.group("g"))
    stage.ask(producer.offsets("g", a=1))
    stage.start(producer.abort)
    save = stage.saved()
    assert isinstance(save, Save)
    assert save.commits == {}
    assert save.snapshot.offsets == {}


def test_offsets_and_partitions_are_bounded() -> None:
    stage = Stage(config=TransactionConfig(offset_count_max=2, partition_count_max=2))
    producer = Instance(stage.ask(stage.init()))
    stage.ask(producer.group("g"))
    assert stage.code(producer.offsets("g", a=1, b=1, c=1)) is ErrorCode.INVALID_REQUEST
    many = producer.add(*map(partition, range(3)))
    assert stage.code(many) is ErrorCode.INVALID_REQUEST
    assert stage.code(producer.commit) is ErrorCode.NONE


# Time ---------------------------------------------------------------------------------------------


def test_a_transaction_that_takes_too_long_is_aborted(stage: Stage, producer: Instance) -> None:
    stage.ask(producer.add(partition()))
    assert stage.transaction.wake_ms == stage.now_ms + TIMEOUT_MS
    stage.pass_time(TIMEOUT_MS - 1)
    assert not stage.saves
    stage.pass_time(1)
    stage.saved()
    markers = stage.marked()
    assert (markers.is_commit, markers.epoch) == (False, producer.epoch + 1)
    stage.settle()
    assert stage.code(producer.commit) is ErrorCode.PRODUCER_FENCED
    assert stage.code(producer.abort) is ErrorCode.PRODUCER_FENCED


def test_time_begins_with_the_transaction(stage: Stage, producer: Instance) -> None:
    stage.pass_time(10 * TIMEOUT_MS)
    stage.ask(producer.add(partition()))
    stage.pass_time(TIMEOUT_MS // 2)
    stage.ask(producer.add(partition(1)))
    stage.pass_time(TIMEOUT_MS // 2)
    assert stage.saves, "adding does not give it more time"


def test_an_unused_id_is_forgotten(stage: Stage, producer: Instance) -> None:
    stage.pass_time(stage.config.id_expiration_ms)
    token = stage.start(producer.add(partition()))
    init = stage.start(stage.init())
    assert isinstance(stage.saved(), Erase)
    assert stage.transaction.is_dead
    assert stage.replies[token].error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stage.replies[init].error is ErrorCode.CONCURRENT_TRANSACTIONS


# Trouble ------------------------------------------------------------------------------------------


def test_a_failed_save_changes_nothing(stage: Stage, producer: Instance) -> None:
    token = stage.start(producer.add(partition()))
    stage.not_saved()
    assert stage.replies[token].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.state is TransactionState.EMPTY
    assert stage.code(producer.add(partition())) is ErrorCode.NONE


def test_a_decision_is_saved_until_it_is_saved(stage: Stage, producer: Instance) -> None:
    """It may be on disk although the save failed, so nothing else may be decided."""
    stage.ask(producer.add(partition()))
    token = stage.start(producer.commit)
    stage.not_saved()
    assert stage.replies[token].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    opposite = stage.start(producer.abort)
    assert not stage.saves
    assert stage.transaction.wake_ms == stage.now_ms + stage.config.retry_ms
    stage.pass_time(stage.config.retry_ms)
    assert len(stage.saves) == 1
    stage.settle()
    assert stage.replies[opposite].error is ErrorCode.INVALID_TXN_STATE
    assert stage.state is TransactionState.COMPLETE_COMMIT
    assert stage.code(producer.commit) is ErrorCode.NONE


def test_a_lost_completion_only_repeats_markers(stage: Stage, producer: Instance) -> None:
    stage.ask(producer.add(partition()))
    stage.start(producer.commit)
    prepared = stage.saved()
    assert isinstance(prepared, Save)
    stage.marked()
    stage.not_saved()
    assert stage.state is TransactionState.COMPLETE_COMMIT
    after_crash = Stage(prepared.snapshot)
    assert after_crash.marked().is_commit
    after_crash.settle()
    assert after_crash.state is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("state", list(TransactionState))
def test_every_state_survives_a_restart(state: TransactionState) -> None:
    snapshot = TransactionSnapshot(
        producer_id=1, epoch=2, timeout_ms=3, state=state, partitions=(partition(),)
    )
    again = decode_snapshot(encode_snapshot(snapshot))
    assert again == snapshot
    stage = Stage(again)
    assert bool(stage.markers) is (state in PREPARED)


def test_what_is_no_snapshot_is_corrupt() -> None:
    with pytest.raises(Corruption):
        decode_snapshot(b"\x01", transactional_id="t")
    good = TransactionSnapshot(producer_id=1, epoch=2, timeout_ms=3)
    assert decode_snapshot(encode_snapshot(replace(good, groups=("g",)))).groups == ("g",)


def test_the_table_refuses_what_it_does_not_have() -> None:
    with pytest.raises(IllegalTransition):
        next_state(TransactionState.PREPARE_COMMIT, Step.ABORT)
