"""OffsetCommit and TxnOffsetCommit on a broker: what is accepted, and the codes of failures."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from firnmq.brokers.kafka.groups import GroupConfig
from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages.groups import (
    DeleteGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
)
from firnmq.brokers.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from firnmq.brokers.kafka.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from firnmq.errors import DiskFull
from tests.unit.brokers.kafka.stage import TOPIC, Stage, on_stage

GROUPS = GroupConfig(initial_rebalance_delay_ms=0)
_numbers = itertools.count(1)


async def ask(stage: Stage, key: ApiKey, request: Message, version: int) -> Any:
    stage.feed(stage.request(next(_numbers), key, request, version))
    ((_, answer),) = await stage.answers(1)
    return answer


async def join(stage: Stage, protocol_type: str = "consumer", metadata: bytes = b"") -> Any:
    """A member of a group whose rebalance is not complete: the leader has not synced."""
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        member_id="",
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    return await ask(stage, ApiKey.JOIN_GROUP, request, 3)


async def commit(stage: Stage, offset: int = 5, **member: Any) -> ErrorCode:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[part])], **member
    )
    answer = await ask(stage, ApiKey.OFFSET_COMMIT, request, 7)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_a_transaction_commits_offsets_while_its_group_completes_a_rebalance(
    tmp_path: Path,
) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        joined = await join(stage)
        init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=10_000)
        producer = await ask(stage, ApiKey.INIT_PRODUCER_ID, init, 2)
        ids = {
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        assert not (
            await ask(stage, ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest(**ids), 2)
        ).error_code

        async def commit_in_transaction(generation: int, member_id: str) -> ErrorCode:
            part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
            request = TxnOffsetCommitRequest(
                **ids,
                generation_id=generation,
                member_id=member_id,
                topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
            )
            answer = await ask(stage, ApiKey.TXN_OFFSET_COMMIT, request, 3)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        generation, me = joined.generation_id, joined.member_id
        assert await commit_in_transaction(generation, me) is ErrorCode.NONE
        assert await commit_in_transaction(generation - 1, me) is ErrorCode.ILLEGAL_GENERATION
        assert await commit_in_transaction(generation, "x") is ErrorCode.UNKNOWN_MEMBER_ID
        # A commit outside of a transaction has to wait, as with Apache Kafka.
        member = {"generation_id": generation, "member_id": me}
        assert await commit(stage, **member) is ErrorCode.REBALANCE_IN_PROGRESS

    on_stage(tmp_path, act, groups=GROUPS)


@pytest.mark.parametrize(
    ("protocol_type", "subscribed", "code", "part_code"),
    [
        ("consumer", b"\x00\x05other", ErrorCode.NONE, ErrorCode.NONE),
        (
            "consumer",
            len(TOPIC).to_bytes(2, "big") + TOPIC.encode(),
            ErrorCode.NONE,
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ),
        ("connect", b"", ErrorCode.NON_EMPTY_GROUP, None),
    ],
)
def test_a_group_in_use_keeps_the_offsets_of_what_it_subscribes_to(
    tmp_path: Path,
    protocol_type: str,
    subscribed: bytes,
    code: ErrorCode,
    part_code: ErrorCode | None,
) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        assert await commit(stage) is ErrorCode.NONE
        metadata = b"\x00\x00\x00\x00\x00\x01" + subscribed + b"\xff\xff\xff\xff"
        joined = await join(stage, protocol_type, metadata)
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[],
        )
        assert not (await ask(stage, ApiKey.SYNC_GROUP, sync, 3)).error_code
        part = OffsetDeleteRequestPartition(partition_index=0)
        delete = OffsetDeleteRequest(
            group_id="g", topics=[OffsetDeleteRequestTopic(name=TOPIC, partitions=[part])]
        )
        answer = await ask(stage, ApiKey.OFFSET_DELETE, delete, 0)
        assert answer.error_code == code
        parts = [part.error_code for topic in answer.topics for part in topic.partitions]
        assert parts == ([] if part_code is None else [part_code])

    on_stage(tmp_path, act, groups=GROUPS)


def test_a_failing_disk_is_told_by_a_code_that_consumers_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DiskFull("the key-value store", OSError("no space left"))

    async def act(stage: Stage) -> None:
        await stage.create()
        assert await commit(stage) is ErrorCode.NONE
        part = OffsetDeleteRequestPartition(partition_index=0)
        delete = OffsetDeleteRequest(
            group_id="g", topics=[OffsetDeleteRequestTopic(name=TOPIC, partitions=[part])]
        )
        kv = stage.storage.manager.offset_manager._store._kv
        with monkeypatch.context() as patched:
            patched.setattr(kv, "sync", fail)
            assert await commit(stage) is ErrorCode.NOT_COORDINATOR
            answer = await ask(stage, ApiKey.OFFSET_DELETE, delete, 0)
            assert answer.error_code == ErrorCode.NOT_COORDINATOR
            assert await commit(stage) is ErrorCode.NOT_COORDINATOR
            request = DeleteGroupsRequest(groups_names=["g"])
            answer = await ask(stage, ApiKey.DELETE_GROUPS, request, 0)
            assert [each.error_code for each in answer.results] == [ErrorCode.NOT_COORDINATOR]
        assert await commit(stage) is ErrorCode.NONE

    on_stage(tmp_path, act, groups=GROUPS)


def test_a_negative_offset_is_not_taken_for_a_wrong_group(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        assert await commit(stage, offset=-5) is ErrorCode.INVALID_REQUEST

    on_stage(tmp_path, act, groups=GROUPS)
