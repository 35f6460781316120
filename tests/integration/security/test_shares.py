"""What a client leaves behind is bounded: unused transactional ids, committed group offsets."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
)
from firnmq.brokers.kafka.protocol.messages.groups import (
    DeleteGroupsRequest,
)
from firnmq.brokers.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from firnmq.brokers.kafka.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.integration.admin.serving import Served
from tests.integration.security.wire import Wire

IDS, GROUPS, NOTE_BYTES = 3, 3, 1_000
TOPIC = "t"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(
        tmp_path_factory.mktemp("shares") / "data",
        settings={
            "FIRN_TRANSACTIONS_CLIENT_UNUSED_ID_COUNT_MAX": str(IDS),
            "FIRN_GROUPS_CLIENT_OFFSET_GROUP_COUNT_MAX": str(GROUPS),
            "FIRN_GROUPS_CLIENT_OFFSET_BYTES_MAX": str(NOTE_BYTES + 1_000),
        },
    )
    try:
        with Wire(served, None) as wire:
            topic = CreatableTopic(
                name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
            assert wire.ask(ApiKey.CREATE_TOPICS, 4, request) is not None
        yield served
    finally:
        assert served.stop() == 0


def init(wire: Wire, name: str) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answer = wire.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
    assert isinstance(answer, InitProducerIdResponse)
    return answer


def add_partition(wire: Wire, name: str, producer: InitProducerIdResponse) -> ErrorCode:
    request = AddPartitionsToTxnRequest(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
    )
    answer = wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
    assert isinstance(answer, AddPartitionsToTxnResponse)
    return ErrorCode(answer.results[0].results[0].error_code)


def commit(wire: Wire, group: str, note: str | None = None) -> ErrorCode:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_leader_epoch=-1, committed_metadata=note
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
    )
    answer = wire.ask(ApiKey.OFFSET_COMMIT, 7, request)
    assert isinstance(answer, OffsetCommitResponse)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_a_stranger_s_ids_give_way_and_a_producer_s_do_not(node: Served) -> None:
    """1. One producer has had a transaction. 2. One has only initialised and stays connected.
    3. A stranger with the same address begins many ids. 4. Both producers go on."""
    with Wire(node, None) as used, Wire(node, None) as early, Wire(node, None) as stranger:
        first, second = init(used, "used"), init(early, "early")
        assert add_partition(used, "used", first) is ErrorCode.NONE
        answers = [init(stranger, f"s{number}") for number in range(5 * IDS)]
        assert {each.error_code for each in answers} == {ErrorCode.NONE}
        assert add_partition(early, "early", second) is ErrorCode.NONE
        assert add_partition(used, "used", first) is ErrorCode.NONE
        told = add_partition(stranger, "s0", answers[0])
        assert told is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_an_id_gives_way_after_its_connection_is_closed(node: Served) -> None:
    with Wire(node, None) as wire:
        first = Wire(node, None)
        producer = init(first, "closed")
        others = [Wire(node, None) for _ in range(2 * IDS)]
        try:
            codes = [init(each, f"o{at}").error_code for at, each in enumerate(others)]
            assert codes[-1] == ErrorCode.POLICY_VIOLATION, "every connection is open"
            first.close()
            deadline = time.monotonic() + 60
            while init(wire, "new").error_code == ErrorCode.POLICY_VIOLATION:
                assert time.monotonic() < deadline
            told = add_partition(wire, "closed", producer)
            assert told is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        finally:
            for each in others:
                each.close()


def test_groups_that_only_commit_offsets_are_limited(node: Served) -> None:
    with Wire(node, None) as wire:
        names = [f"g{number}" for number in range(GROUPS)]
        assert {commit(wire, name) for name in names} == {ErrorCode.NONE}
        assert commit(wire, "one-more") is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert commit(wire, names[0], "n" * NOTE_BYTES) is ErrorCode.NONE
        assert commit(wire, names[1], "n" * NOTE_BYTES) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        wire.ask(ApiKey.DELETE_GROUPS, 1, DeleteGroupsRequest(groups_names=[names[0]]))
        assert commit(wire, "one-more", "n" * NOTE_BYTES) is ErrorCode.NONE
