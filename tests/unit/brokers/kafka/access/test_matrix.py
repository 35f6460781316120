"""Every API with no right, with each single right, and with each set of rights that is enough."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from firnmq.brokers.kafka.access import table
from firnmq.brokers.kafka.access.guard import JUDGES
from firnmq.brokers.kafka.access.table import CODES, TABLE, Need
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.protocol import ADVERTISED, ApiKey, Message
from firnmq.brokers.kafka.protocol.messages import (
    acls,
    admin,
    clients,
    consumer_groups,
    groups,
    metadata,
    offsets,
    produce_fetch,
    tools,
    topic_partitions,
    transactions,
)
from firnmq.brokers.security.acl import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)
from firnmq.brokers.security.acl.model import GRANTING
from firnmq.config import SecurityConfig, TopicConfig
from firnmq.server.node import Node
from firnmq.server.settings import NodeConfig
from tests.unit.brokers.kafka.stage import TOPIC, Stage, batch_of

GONE, GROUP, TXN = "no-such-topic", "readers", "mover"
NAMES = {
    ResourceType.TOPIC: "*",
    ResourceType.GROUP: GROUP,
    ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.TRANSACTIONAL_ID: TXN,
}
RIGHTS = sorted(
    {need for needs in TABLE.values() for need in needs},
    key=lambda need: (need.kind, need.operation),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A request, and the sets of needs of which one is enough."""

    api: ApiKey
    version: int
    request: Message
    enough: tuple[frozenset[Need], ...]
    is_refused: bool = True
    """Whether a client without right is told so, and not merely shown less."""
    label: str = ""

    def __str__(self) -> str:
        return f"{self.api.name.lower()}{self.label}"


def any_of(*needs: Need) -> tuple[frozenset[Need], ...]:
    return tuple(frozenset((need,)) for need in needs)


def all_of(*needs: Need) -> tuple[frozenset[Need], ...]:
    return (frozenset(needs),)


def config_case(api: ApiKey, kind: int, name: str, need: Need) -> Case:
    request: Message
    if api is ApiKey.DESCRIBE_CONFIGS:
        resource: Any = admin.DescribeConfigsResource(resource_type=kind, resource_name=name)
        request = admin.DescribeConfigsRequest(resources=[resource])
    elif api is ApiKey.ALTER_CONFIGS:
        resource = admin.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
        request = admin.AlterConfigsRequest(resources=[resource], validate_only=True)
    else:
        resource = admin.IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[]
        )
        request = admin.IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    return Case(api=api, version=1, request=request, enough=any_of(need), label=f"-{kind}")


def produce(transactional_id: str | None) -> produce_fetch.ProduceRequest:
    data = produce_fetch.PartitionProduceData(
        index=0, records=batch_of(b"v") if transactional_id is None else transactional_batch()
    )
    topic = produce_fetch.TopicProduceData(name=TOPIC, partition_data=[data])
    return produce_fetch.ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=1_000, topic_data=[topic]
    )


def transactional_batch() -> bytes:
    batch = bytearray(batch_of(b"v", producer=(1, 0)))
    batch[22] |= 0x10
    return bytes(batch)


def fetch(replica: int) -> produce_fetch.FetchRequest:
    wanted = produce_fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return produce_fetch.FetchRequest(
        replica_id=replica,
        max_wait_ms=0,
        min_bytes=0,
        topics=[produce_fetch.FetchTopic(topic=TOPIC, partitions=[wanted])],
    )


def _records() -> Iterator[Case]:
    yield Case(
        api=ApiKey.PRODUCE, version=9, request=produce(None), enough=any_of(table.WRITE_TOPIC)
    )
    yield Case(
        api=ApiKey.PRODUCE,
        version=9,
        request=produce(TXN),
        enough=all_of(table.WRITE_TOPIC, table.WRITE_TRANSACTION),
        label="-transactional",
    )
    yield Case(api=ApiKey.FETCH, version=11, request=fetch(-1), enough=any_of(table.READ_TOPIC))
    yield Case(
        api=ApiKey.FETCH,
        version=11,
        request=fetch(2),
        enough=any_of(table.CLUSTER_ACTION),
        label="-replica",
    )
    listed = produce_fetch.ListOffsetsTopic(
        name=TOPIC,
        partitions=[produce_fetch.ListOffsetsPartition(partition_index=0, timestamp=-1)],
    )
    yield Case(
        api=ApiKey.LIST_OFFSETS,
        version=5,
        request=produce_fetch.ListOffsetsRequest(topics=[listed]),
        enough=any_of(table.DESCRIBE_TOPIC),
    )
    epoch = produce_fetch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    yield Case(
        api=ApiKey.OFFSET_FOR_LEADER_EPOCH,
        version=3,
        request=produce_fetch.OffsetForLeaderEpochRequest(
            topics=[produce_fetch.OffsetForLeaderTopic(topic=TOPIC, partitions=[epoch])]
        ),
        enough=any_of(table.CLUSTER_ACTION, table.DESCRIBE_TOPIC),
    )


def _metadata() -> Iterator[Case]:
    def named(name: str, *, creates: bool) -> metadata.MetadataRequest:
        return metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=creates
        )

    describe = table.DESCRIBE_TOPIC
    for label, name in (("", TOPIC), ("-gone", GONE)):
        yield Case(
            api=ApiKey.METADATA,
            version=9,
            request=named(name, creates=False),
            enough=any_of(describe),
            label=label,
        )
    yield Case(
        api=ApiKey.METADATA,
        version=9,
        request=named("in valid", creates=True),  # Refused as invalid once it may be created.
        enough=(
            frozenset((describe, table.CREATE_CLUSTER)),
            frozenset((describe, table.CREATE_TOPIC)),
        ),
        label="-created",
    )
    everything = metadata.MetadataRequest(topics=None)
    yield Case(
        api=ApiKey.METADATA,
        version=9,
        request=everything,
        enough=(frozenset(),),
        is_refused=False,
        label="-all",
    )
    yield Case(
        api=ApiKey.DESCRIBE_CLUSTER,
        version=0,
        request=metadata.DescribeClusterRequest(),
        enough=(frozenset(),),
        is_refused=False,
    )
    for kind, key, need in (
        (0, GROUP, table.DESCRIBE_GROUP),
        (1, TXN, table.DESCRIBE_TRANSACTION),
    ):
        for version in (1, 4):
            yield Case(
                api=ApiKey.FIND_COORDINATOR,
                version=version,
                request=metadata.FindCoordinatorRequest(
                    key=key, key_type=kind, coordinator_keys=[key]
                ),
                enough=any_of(need),
                label=f"-{kind}-v{version}",
            )


def _groups() -> Iterator[Case]:
    read = any_of(table.READ_GROUP)
    protocol = groups.JoinGroupRequestProtocol(name="range", metadata=b"")
    member = {"group_id": GROUP, "generation_id": 1, "member_id": "m"}
    join = groups.JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    yield Case(api=ApiKey.JOIN_GROUP, version=5, request=join, enough=read)
    sync = groups.SyncGroupRequest(assignments=[], **member)  # type: ignore[arg-type]
    yield Case(api=ApiKey.SYNC_GROUP, version=3, request=sync, enough=read)
    beat = groups.HeartbeatRequest(**member)  # type: ignore[arg-type]
    yield Case(api=ApiKey.HEARTBEAT, version=3, request=beat, enough=read)
    leave = groups.LeaveGroupRequest(group_id=GROUP, members=[groups.MemberIdentity(member_id="m")])
    yield Case(api=ApiKey.LEAVE_GROUP, version=3, request=leave, enough=read)
    staying = consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id="m", member_epoch=5, subscribed_topic_names=[TOPIC]
    )
    yield Case(
        api=ApiKey.CONSUMER_GROUP_HEARTBEAT,
        version=1,
        request=staying,
        enough=all_of(table.READ_GROUP, table.DESCRIBE_TOPIC),
    )
    yield Case(
        api=ApiKey.CONSUMER_GROUP_DESCRIBE,
        version=1,
        request=consumer_groups.ConsumerGroupDescribeRequest(group_ids=[GROUP]),
        enough=any_of(table.DESCRIBE_GROUP),
    )
    yield Case(
        api=ApiKey.DESCRIBE_GROUPS,
        version=3,
        request=groups.DescribeGroupsRequest(groups=[GROUP]),
        enough=any_of(table.DESCRIBE_GROUP),
    )
    yield Case(
        api=ApiKey.LIST_GROUPS,
        version=3,
        request=groups.ListGroupsRequest(),
        enough=(frozenset(),),
        is_refused=False,
    )
    yield Case(
        api=ApiKey.DELETE_GROUPS,
        version=1,
        request=groups.DeleteGroupsRequest(groups_names=[GROUP]),
        enough=any_of(table.DELETE_GROUP),
    )


def _offsets() -> Iterator[Case]:
    part = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = offsets.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
    yield Case(
        api=ApiKey.OFFSET_COMMIT,
        version=5,
        request=offsets.OffsetCommitRequest(group_id=GROUP, topics=[topic]),
        enough=all_of(table.READ_GROUP, table.READ_TOPIC),
    )
    wanted = offsets.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    group = offsets.OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted])
    for version in (1, 5, 8):
        yield Case(
            api=ApiKey.OFFSET_FETCH,
            version=version,
            request=offsets.OffsetFetchRequest(group_id=GROUP, topics=[wanted], groups=[group]),
            enough=all_of(table.DESCRIBE_GROUP, table.DESCRIBE_TOPIC),
            label=f"-v{version}",
        )
    gone = offsets.OffsetDeleteRequestTopic(
        name=TOPIC, partitions=[offsets.OffsetDeleteRequestPartition(partition_index=0)]
    )
    yield Case(
        api=ApiKey.OFFSET_DELETE,
        version=0,
        request=offsets.OffsetDeleteRequest(group_id=GROUP, topics=[gone]),
        enough=all_of(table.DELETE_GROUP, table.READ_TOPIC),
    )


def _transactions() -> Iterator[Case]:
    yield Case(
        api=ApiKey.INIT_PRODUCER_ID,
        version=1,
        request=transactions.InitProducerIdRequest(transaction_timeout_ms=1_000),
        enough=any_of(table.IDEMPOTENT_WRITE, table.WRITE_TOPIC),
    )
    yield Case(
        api=ApiKey.INIT_PRODUCER_ID,
        version=1,
        request=transactions.InitProducerIdRequest(
            transactional_id=TXN, transaction_timeout_ms=1_000
        ),
        enough=any_of(table.WRITE_TRANSACTION),
        label="-transactional",
    )
    # An id that no producer has: the answer is about that, and nothing begins.
    known = {"transactional_id": TXN, "producer_id": 77, "producer_epoch": 0}
    added = transactions.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
    yield Case(
        api=ApiKey.ADD_PARTITIONS_TO_TXN,
        version=2,
        request=transactions.AddPartitionsToTxnRequest(topics=[added], **known),  # type: ignore[arg-type]
        enough=all_of(table.WRITE_TRANSACTION, table.WRITE_TOPIC),
    )
    yield Case(
        api=ApiKey.ADD_OFFSETS_TO_TXN,
        version=2,
        request=transactions.AddOffsetsToTxnRequest(group_id=GROUP, **known),  # type: ignore[arg-type]
        enough=all_of(table.WRITE_TRANSACTION, table.READ_GROUP),
    )
    yield Case(
        api=ApiKey.END_TXN,
        version=2,
        request=transactions.EndTxnRequest(committed=True, **known),  # type: ignore[arg-type]
        enough=any_of(table.WRITE_TRANSACTION),
    )
    part = transactions.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = transactions.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[part])
    yield Case(
        api=ApiKey.TXN_OFFSET_COMMIT,
        version=2,
        request=transactions.TxnOffsetCommitRequest(group_id=GROUP, topics=[topic], **known),  # type: ignore[arg-type]
        enough=all_of(table.WRITE_TRANSACTION, table.READ_GROUP, table.READ_TOPIC),
    )


def _administration() -> Iterator[Case]:
    new = admin.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    yield Case(
        api=ApiKey.CREATE_TOPICS,
        version=5,
        request=admin.CreateTopicsRequest(topics=[new], validate_only=True),
        enough=any_of(table.CREATE_CLUSTER, table.CREATE_TOPIC),
    )
    delete = any_of(table.DELETE_TOPIC)
    yield Case(
        api=ApiKey.DELETE_TOPICS,
        version=4,
        request=admin.DeleteTopicsRequest(topic_names=[GONE], timeout_ms=1_000),
        enough=delete,
    )
    yield Case(
        api=ApiKey.DELETE_TOPICS,
        version=6,
        request=admin.DeleteTopicsRequest(
            topics=[admin.DeleteTopicState(name=GONE)], timeout_ms=1_000
        ),
        enough=delete,
        label="-v6",
    )
    trim = admin.DeleteRecordsTopic(
        name=TOPIC, partitions=[admin.DeleteRecordsPartition(partition_index=0, offset=0)]
    )
    yield Case(
        api=ApiKey.DELETE_RECORDS,
        version=1,
        request=admin.DeleteRecordsRequest(topics=[trim], timeout_ms=1_000),
        enough=delete,
    )
    grown = admin.CreatePartitionsTopic(name=TOPIC, count=1)
    yield Case(
        api=ApiKey.CREATE_PARTITIONS,
        version=1,
        request=admin.CreatePartitionsRequest(topics=[grown], timeout_ms=1_000),
        enough=any_of(table.ALTER_TOPIC),
    )
    for api, by_kind in (
        (
            ApiKey.DESCRIBE_CONFIGS,
            (
                table.DESCRIBE_TOPIC_CONFIGS,
                table.DESCRIBE_CLUSTER_CONFIGS,
                table.DESCRIBE_GROUP_CONFIGS,
            ),
        ),
        (
            ApiKey.ALTER_CONFIGS,
            (table.ALTER_TOPIC_CONFIGS, table.ALTER_CLUSTER_CONFIGS, table.ALTER_GROUP_CONFIGS),
        ),
        (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            (table.ALTER_TOPIC_CONFIGS, table.ALTER_CLUSTER_CONFIGS, table.ALTER_GROUP_CONFIGS),
        ),
    ):
        of_topic, of_cluster, of_group = by_kind
        yield config_case(api, 2, TOPIC, of_topic)
        yield config_case(api, 4, "0", of_cluster)
        yield config_case(api, 32, GROUP, of_group)
    yield from _rules()
    yield from _clients()


def _clients() -> Iterator[Case]:
    entity = [clients.QuotaEntity(entity_type="user", entity_name="ann")]
    deletion = clients.ScramDeletion(name="ann", mechanism=1)
    needs: dict[ApiKey, tuple[Message, Need]] = {
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (
            clients.DescribeClientQuotasRequest(components=[]),
            table.DESCRIBE_CLUSTER_CONFIGS,
        ),
        ApiKey.ALTER_CLIENT_QUOTAS: (
            clients.AlterClientQuotasRequest(
                entries=[clients.AlteredQuota(entity=entity, ops=[])], validate_only=True
            ),
            table.ALTER_CLUSTER_CONFIGS,
        ),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
            clients.DescribeUserScramCredentialsRequest(users=None),
            table.DESCRIBE_CLUSTER,
        ),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
            clients.AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]),
            table.ALTER_CLUSTER,
        ),
    }
    needs[ApiKey.DESCRIBE_QUORUM] = (
        topic_partitions.DescribeQuorumRequest(topics=[]),
        table.DESCRIBE_CLUSTER,
    )
    needs[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = (
        topic_partitions.DescribeTopicPartitionsRequest(
            topics=[topic_partitions.PagedTopic(name=TOPIC)]
        ),
        table.DESCRIBE_TOPIC,
    )
    for api, (request, need) in needs.items():
        yield Case(api=api, version=0, request=request, enough=any_of(need))


def _rules() -> Iterator[Case]:
    nothing = {"operation": 1, "permission_type": 1, "resource_type_filter": 2}
    selected = {"resource_name_filter": "none", **nothing}
    yield Case(
        api=ApiKey.DESCRIBE_ACLS,
        version=1,
        request=acls.DescribeAclsRequest(**selected),  # type: ignore[arg-type]
        enough=any_of(table.DESCRIBE_CLUSTER),
    )
    creation = acls.AclCreation(
        resource_type=0,  # Invalid, so that nothing changes.
        resource_name="a",
        principal="User:ann",
        host="*",
        operation=3,
        permission_type=3,
    )
    yield Case(
        api=ApiKey.CREATE_ACLS,
        version=1,
        request=acls.CreateAclsRequest(creations=[creation]),
        enough=any_of(table.ALTER_CLUSTER),
    )
    yield Case(
        api=ApiKey.DELETE_ACLS,
        version=1,
        request=acls.DeleteAclsRequest(filters=[acls.DeleteAclsFilter(**selected)]),  # type: ignore[arg-type]
        enough=any_of(table.ALTER_CLUSTER),
    )


def _tools() -> Iterator[Case]:
    elected = tools.TopicPartitions(topic=TOPIC, partitions=[0])
    part = tools.ReassignablePartition(partition_index=0, replicas=[1])
    moved = tools.ReassignableTopic(name=TOPIC, partitions=[part])
    asked = tools.ProducersTopicRequest(name=TOPIC, partition_indexes=[0])
    describe, alter = any_of(table.DESCRIBE_CLUSTER), any_of(table.ALTER_CLUSTER)
    plain: list[tuple[ApiKey, int, Message, tuple[frozenset[Need], ...]]] = [
        (ApiKey.DESCRIBE_LOG_DIRS, 3, tools.DescribeLogDirsRequest(), describe),
        (
            ApiKey.ELECT_LEADERS,
            1,
            tools.ElectLeadersRequest(topic_partitions=[elected]),
            alter,
        ),
        (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            tools.AlterPartitionReassignmentsRequest(topics=[moved]),
            alter,
        ),
        (
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            0,
            tools.ListPartitionReassignmentsRequest(),
            describe,
        ),
        (
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            tools.DescribeProducersRequest(topics=[asked]),
            any_of(table.READ_TOPIC),
        ),
        (
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            tools.DescribeTransactionsRequest(transactional_ids=[TXN]),
            any_of(table.DESCRIBE_TRANSACTION),
        ),
        (
            ApiKey.LIST_CONFIG_RESOURCES,
            1,
            tools.ListConfigResourcesRequest(),
            any_of(table.DESCRIBE_CLUSTER_CONFIGS),
        ),
    ]
    for api, version, request, enough in plain:
        yield Case(api=api, version=version, request=request, enough=enough)
    yield Case(
        api=ApiKey.LIST_TRANSACTIONS,
        version=0,
        request=tools.ListTransactionsRequest(),
        enough=(frozenset(),),
        is_refused=False,
    )


CASES = [
    *_records(),
    *_metadata(),
    *_groups(),
    *_offsets(),
    *_transactions(),
    *_administration(),
    *_tools(),
]
REFUSALS = {int(code) for code in CODES.values()}


def codes_in(message: object) -> set[int]:
    """Every error code in an answer."""
    found: set[int] = set()
    for name in getattr(message, "__struct_fields__", ()):
        value = getattr(message, name)
        if name == "error_code":
            found.add(int(value))
        elif isinstance(value, (list, tuple)):
            for each in value:
                found |= codes_in(each)
    return found


def is_enough(case: Case, granted: Need) -> bool:
    return any(
        all(
            need.kind is granted.kind and granted.operation in GRANTING[need.operation]
            for need in needs
        )
        for needs in case.enough
    )


def rule(principal: str, need: Need, permission: Permission = Permission.ALLOW) -> Rule:
    return Rule(
        resource_type=need.kind,
        pattern=PatternType.LITERAL,
        name=NAMES[need.kind],
        principal=principal,
        host="*",
        operation=need.operation,
        permission=permission,
    )


class Judged:
    """A node with an authorizer, and a connection that is each principal in turn."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.stage = Stage(node)
        self._sent = 0
        authorizer = node.broker._authorizer
        assert authorizer is not None
        self.rules = authorizer.rules

    async def add(self, rules: list[Rule]) -> None:
        await asyncio.to_thread(self.rules.add, rules)

    async def ask(self, principal: str, api: int, version: int, request: Message) -> Any:
        self.node.broker._identify(self.stage.connection, principal)
        self._sent += 1
        self.stage.feed(self.stage.request(self._sent, api, request, version))
        ((_, answer),) = await self.stage.answers(1)
        return answer


def judged(path: Path, act: Callable[[Judged], Any], *super_users: str) -> None:
    async def main() -> None:
        config = NodeConfig(
            kafka=KafkaConfig(port=0),
            security=SecurityConfig(authorization=True, super_users=super_users),
        )
        config = dataclasses.replace(config, admin=dataclasses.replace(config.admin, enabled=False))
        async with Node(path, config) as node:
            there = Judged(node)
            await act(there)
            there.stage.lose()

    asyncio.run(main())


def test_every_api_has_needs_and_a_case() -> None:
    assert set(TABLE) == {ApiKey(key) for key in ADVERTISED}
    needing = {api for api, needs in TABLE.items() if needs}
    assert set(JUDGES) == needing - {ApiKey.PRODUCE}
    assert {case.api for case in CASES} == needing


@pytest.mark.parametrize("api", TABLE, ids=lambda api: api.name.lower())
def test_what_is_enough_is_in_the_table(api: ApiKey) -> None:
    cases = [case for case in CASES if case.api is api]
    used = {need for case in cases for needs in case.enough for need in needs}
    assert used <= set(TABLE[api])
    if all(case.is_refused for case in cases):
        shows = {table.DESCRIBE_TOPIC_CONFIGS} if api is ApiKey.CREATE_TOPICS else set()
        with_topics = (
            *(ApiKey.DELETE_TOPICS, ApiKey.DESCRIBE_TRANSACTIONS),
            ApiKey.CONSUMER_GROUP_DESCRIBE,
        )
        shows |= {table.DESCRIBE_TOPIC} if api in with_topics else set()
        assert set(TABLE[api]) - used == shows


def test_the_matrix(tmp_path: Path) -> None:
    rules = [rule(f"User:single-{place}", need) for place, need in enumerate(RIGHTS)]
    for number, case in enumerate(CASES):
        for place, needs in enumerate(case.enough):
            rules += [rule(f"User:enough-{number}-{place}", need) for need in needs]
            # All rights but one of those that are needed.
            for missing in needs:
                who = f"User:lacks-{number}-{place}-{RIGHTS.index(missing)}"
                rules += [rule(who, need) for need in needs if need != missing]

    async def act(there: Judged) -> None:
        await there.stage.create()
        await there.add(rules)
        wrong = []
        for number, case in enumerate(CASES):

            async def refused(principal: str, case: Case = case) -> bool:
                answer = await there.ask(principal, case.api, case.version, case.request)
                return bool(codes_in(answer) & REFUSALS)

            if await refused("User:nobody") is not case.is_refused:
                wrong.append(f"{case}: without right")
            if await refused("User:root"):
                wrong.append(f"{case}: a super user")
            for place, need in enumerate(RIGHTS):
                expected = case.is_refused and not is_enough(case, need)
                if await refused(f"User:single-{place}") is not expected:
                    wrong.append(f"{case}: {need.operation.name} on {need.kind.name} alone")
            for place, needs in enumerate(case.enough):
                if await refused(f"User:enough-{number}-{place}"):
                    wrong.append(f"{case}: with {needs}")
                for missing in needs:
                    who = f"User:lacks-{number}-{place}-{RIGHTS.index(missing)}"
                    if case.is_refused and not await refused(who):
                        wrong.append(f"{case}: without {missing}")
        assert not wrong, "\n".join(wrong)

    judged(tmp_path, act, "User:root")


def test_a_rule_that_denies_wins_over_all_others(tmp_path: Path) -> None:
    every = Need(Operation.ALL, ResourceType.TOPIC)

    async def act(there: Judged) -> None:
        await there.stage.create()
        await there.add([rule("User:*", every), rule("User:bob", table.WRITE_TOPIC)])
        bob = ("User:bob", ApiKey.PRODUCE, 9, produce(None))
        assert codes_in(await there.ask(*bob)) == {0}
        await there.add([rule("User:bob", table.WRITE_TOPIC, Permission.DENY)])
        assert codes_in(await there.ask(*bob)) == {29}
        # The one operation is denied, and nothing that others imply.
        assert codes_in(await there.ask("User:bob", ApiKey.FETCH, 11, fetch(-1))) == {0}

    judged(tmp_path, act)


def test_a_refused_client_cannot_tell_what_exists(tmp_path: Path) -> None:
    """Each request about a topic or a group that is there and one that is not: the same answers."""

    async def act(there: Judged) -> None:
        await there.stage.create()
        owner = "User:root"
        for case in CASES:
            if case.api in (ApiKey.OFFSET_COMMIT, ApiKey.PRODUCE):
                await there.ask(owner, case.api, case.version, case.request)
        for case in CASES:
            shown = await there.ask("User:nobody", case.api, case.version, case.request)
            twin = with_names(case.request, {TOPIC: "xxxxxx", GROUP: "yyyyyyy"})
            other = await there.ask("User:nobody", case.api, case.version, twin)
            renamed = with_names(other, {"xxxxxx": TOPIC, "yyyyyyy": GROUP})
            assert repr(renamed) == repr(with_names(shown, {})), case
        everything = await there.ask(
            "User:nobody", ApiKey.METADATA, 9, metadata.MetadataRequest(topics=None)
        )
        assert everything.topics == ()
        listed = await there.ask("User:nobody", ApiKey.LIST_GROUPS, 3, groups.ListGroupsRequest())
        assert listed.groups == ()
        every = topic_partitions.DescribeTopicPartitionsRequest(topics=[])
        paged = await there.ask("User:nobody", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, every)
        assert paged.topics == ()
        topic = await there.ask(owner, ApiKey.METADATA, 10, metadata.MetadataRequest(topics=None))
        (found,) = topic.topics
        by_id = metadata.MetadataRequestTopic(name=None, topic_id=found.topic_id)
        hidden = await there.ask(
            "User:nobody", ApiKey.METADATA, 12, metadata.MetadataRequest(topics=[by_id])
        )
        (answer,) = hidden.topics
        assert (answer.name, answer.error_code, answer.partitions) == (None, 100, ())

    judged(tmp_path, act, "User:root")


def test_members_of_a_consumer_group_find_and_show_only_what_clients_may_see(
    tmp_path: Path,
) -> None:
    async def act(there: Judged) -> None:
        await there.stage.create()
        await there.stage.storage.manager.create_topic("hidden", 1, TopicConfig())
        reading = Need(Operation.READ, ResourceType.GROUP)
        seen = msgspec.structs.replace(rule("User:ann", table.DESCRIBE_TOPIC), name=TOPIC)
        await there.add([rule("User:ann", reading), seen, rule("User:bob", reading)])
        joining = consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_regex=".*",
            topic_partitions=[],
        )
        key = ApiKey.CONSUMER_GROUP_HEARTBEAT
        answer = await there.ask("User:ann", key, 1, joining)
        (given,) = answer.assignment.topic_partitions
        assert given.topic_id == uuid.UUID(there.stage.storage.topic(TOPIC).topic_id)
        asking = consumer_groups.ConsumerGroupDescribeRequest(group_ids=[GROUP])
        for principal, code in (("User:ann", 0), ("User:bob", 29), ("User:root", 0)):
            described = await there.ask(principal, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asking)
            (group,) = described.groups
            assert (group.error_code, len(group.members)) == (code, code == 0)

    judged(tmp_path, act, "User:root")


def test_an_id_is_judged_by_the_name_of_its_topic(tmp_path: Path) -> None:
    async def act(there: Judged) -> None:
        await there.stage.create()
        every = Need(Operation.ALL, ResourceType.TOPIC)
        denied = Rule(
            resource_type=ResourceType.TOPIC,
            pattern=PatternType.LITERAL,
            name=TOPIC,
            principal="User:bob",
            host="*",
            operation=Operation.ALL,
            permission=Permission.DENY,
        )
        await there.add([rule("User:*", every), denied])
        topic_id = uuid.UUID(there.stage.storage.topic(TOPIC).topic_id)
        data = produce_fetch.PartitionProduceData(index=0, records=batch_of(b"v"))
        produced = produce_fetch.TopicProduceData(topic_id=topic_id, partition_data=[data])
        wanted = produce_fetch.FetchPartition(
            partition=0, fetch_offset=0, partition_max_bytes=1_000
        )
        fetched = produce_fetch.FetchTopic(topic_id=topic_id, partitions=[wanted])
        for principal, codes in (("User:ann", {0}), ("User:bob", {29}), ("User:ann", {0})):
            request = produce_fetch.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[produced])
            answer = await there.ask(principal, ApiKey.PRODUCE, 13, request)
            assert codes_in(answer) - {0} == codes - {0}
            assert answer.responses[0].topic_id == topic_id
            reading = produce_fetch.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[fetched])
            answer = await there.ask(principal, ApiKey.FETCH, 15, reading)
            assert codes_in(answer) - {0} == codes - {0}
            assert answer.responses[0].topic_id == topic_id

    judged(tmp_path, act)


def with_names(message: Any, names: dict[str, str]) -> Any:
    """The message with other names wherever these are."""
    if isinstance(message, str):
        return names.get(message, message)
    if isinstance(message, (list, tuple)):
        return [with_names(each, names) for each in message]
    if isinstance(message, memoryview):
        return bytes(message)
    if hasattr(message, "__struct_fields__"):
        fields = {
            name: with_names(getattr(message, name), names) for name in message.__struct_fields__
        }
        return type(message)(**fields)
    return message
