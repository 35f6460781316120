"""What survives a restart of the node."""

import json
from pathlib import Path

import msgspec
import pytest

from firnmq.brokers.kafka.groups import GroupSnapshot, GroupState, decode_snapshot, encode_snapshot
from firnmq.brokers.kafka.groups.consumer.machine import ConsumerGroup
from firnmq.brokers.kafka.groups.core import GENERATION_MAX
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.errors import Corruption
from tests.unit.brokers.kafka.groups.consumer_stage import ConsumerStage
from tests.unit.brokers.kafka.groups.stage import SESSION_MS, Stage


def test_a_snapshot_is_saved_before_anyone_has_an_assignment() -> None:
    stage = Stage(auto_save=False)
    joined = stage.join().joined
    sync = stage.sync(joined)
    assert sync.is_parked
    assert stage.state() is GroupState.COMPLETING
    assert stage.heartbeat(joined) is ErrorCode.NONE
    stage.save()
    assert sync.synced.assignment == b"c-1@1"
    assert stage.saved is not None
    assert stage.saved.members[0].assignment == b"c-1@1"


def test_members_go_on_after_a_restart_as_if_nothing_had_happened() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    stage.restart()
    assert stage.state() is GroupState.STABLE
    assert stage.heartbeat(leader) is ErrorCode.NONE
    assert stage.sync(follower).synced.assignment == b"b-2@2"
    same = stage.join(follower.member_id, name="b")
    assert same.joined.generation == follower.generation, "recognised as unchanged"
    assert stage.join(leader.member_id, name="a").is_parked, "the leader is still the leader"


def test_after_a_restart_every_member_has_a_whole_session_to_show_up() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    stage.now_ms += 10 * SESSION_MS  # The node was down for long.
    stage.restart()
    stage.wait(SESSION_MS - 1)
    assert stage.heartbeat(leader) is ErrorCode.NONE
    stage.wait(1)
    assert stage.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_generation_that_was_not_saved_is_not_used_again() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    # 1. A generation begins and the node crashes before its leader has synced.
    lost = stage.join(leader.member_id, name="a")
    stage.join(follower.member_id, name="b")
    assert lost.joined.generation > leader.generation
    stage.restart()
    # 2. Its members find that it does not exist and join again.
    assert stage.heartbeat(lost.joined) is ErrorCode.ILLEGAL_GENERATION
    again = stage.join(leader.member_id, name="a")
    other = stage.join(follower.member_id, name="b")
    # 3. The number of the lost one stays lost.
    assert again.joined.generation > lost.joined.generation
    stage.settle(again, other)
    assert stage.sync(lost.joined).error is ErrorCode.ILLEGAL_GENERATION


def test_an_empty_group_is_restored_empty() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    stage.leave(leader.member_id, follower.member_id)
    generation = stage.group.generation
    stage.restart()
    assert stage.state() is GroupState.EMPTY
    assert stage.group.wake_ms is None
    assert stage.join().joined.generation > generation


def test_static_members_are_recognised_after_a_restart() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join(instance_id="i1"))
    stage.restart()
    back = stage.join(instance_id="i1")
    assert back.joined.generation == alone.generation
    assert stage.heartbeat(alone, instance_id="i1") is ErrorCode.FENCED_INSTANCE_ID


def test_the_bytes_of_a_snapshot_round_trip() -> None:
    stage = Stage()
    stage.settle(stage.join(instance_id="i1", protocols={"a": b"\0\xff", "b": b""}))
    assert stage.saved is not None
    data = encode_snapshot(stage.saved)
    assert decode_snapshot(data) == stage.saved
    text = msgspec.json.encode(stage.saved)
    assert msgspec.json.decode(text, type=GroupSnapshot) == stage.saved


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03"])
def test_damaged_bytes_are_reported(damage: bytes) -> None:
    with pytest.raises(Corruption):
        decode_snapshot(damage, group_id="readers")


def test_after_the_last_generation_comes_the_first() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    stage.group._core.generation = GENERATION_MAX
    assert stage.join(alone.member_id).joined.generation == 1


GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "consumer_group_v1.json"


def test_consumer_groups_are_stored_as_the_format_says() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    stored = bytes.fromhex(golden["stored"])
    snapshot = decode_snapshot(stored)
    assert json.loads(msgspec.json.encode(snapshot)) == golden["means"]
    assert encode_snapshot(snapshot) == stored


def test_a_consumer_group_is_saved_with_all_that_it_goes_on_with() -> None:
    stage = ConsumerStage()
    stage.join("m1", instance_id="i1", rack_id="r", assignor="range", pattern="a|b")
    stage.classic_join(instance_id="i2")
    stage.beat("m1", 1)  # It has to give up half.
    before = stage.snapshot
    stage.restart()
    kind = stage.group.kind
    assert isinstance(kind, ConsumerGroup)
    assert kind.core.snapshot() == before
