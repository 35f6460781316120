"""No request keeps the event loop from others: the longest stretch of work between two turns.

Work is counted in calls of functions, Python's and C's, that the event loop's thread makes. The
broker's own clock counts them too, a microsecond each, so a run is the same on every machine.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from uuid import UUID

import pytest

from firnmq.brokers.kafka.handlers.topics import TopicHandler
from firnmq.brokers.kafka.protocol import ADVERTISED, ApiKey, ErrorCode, Message
from firnmq.brokers.kafka.protocol.bounds import REQUEST_BYTES_MAX, element_count_max_of
from firnmq.brokers.kafka.protocol.messages import (
    acls,
    admin,
    groups,
    metadata,
    offsets,
    produce_fetch,
)
from firnmq.brokers.kafka.statistics import error_of
from firnmq.brokers.net.loop_turns import Turns
from firnmq.errors import InvalidArgument
from firnmq.testing.large_requests import LargeRequest, large_requests
from tests.unit.brokers.kafka.stage import TOPIC, Stage, append_to, batch_of, on_stage

ELEMENTS = 5_000
CALLS_MAX = 50_000
"""Some ten milliseconds of work. A request of 5,000 elements that does not give way makes more than
100,000 calls."""


class Work:
    """Counts calls of this thread, and the most of them between two turns of the event loop."""

    def __init__(self) -> None:
        self.calls = 0
        self.longest = 0
        self._turn_began = 0
        self._loop = asyncio.get_running_loop()
        self._is_on = True

    def __enter__(self) -> Work:
        self._loop.call_soon(self._turn)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        self._is_on = False

    def clock(self) -> float:
        return self.calls / 1_000_000

    def _count(self, frame: FrameType, event: str, arg: object) -> None:
        self.calls += 1

    def _turn(self) -> None:
        self.longest = max(self.longest, self.calls - self._turn_began)
        self._turn_began = self.calls
        if self._is_on:
            self._loop.call_soon(self._turn)


async def longest_stretch(stage: Stage, request: LargeRequest) -> int:
    stage.node.broker.turns.clock, kept = (work := Work()).clock, stage.node.broker.turns.clock
    with work:
        stage.feed(request.frame)
        await stage.frames(1)
    stage.node.broker.turns.clock = kept
    return work.longest


@pytest.mark.parametrize("api", [ApiKey(key) for key in ADVERTISED], ids=lambda api: api.name)
def test_no_request_works_long_without_giving_way(api: ApiKey, tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(shards=4)
        topic_id = UUID(stage.storage.topic(TOPIC).topic_id)
        for request in large_requests(
            ELEMENTS, topic=TOPIC, topic_id=topic_id, group="group", only=api
        ):
            if request.version == ADVERTISED[api].last:
                assert await longest_stretch(stage, request) < CALLS_MAX, request.label

    on_stage(tmp_path, act)


def test_requests_that_came_together_give_way_to_other_connections(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        frames = [
            stage.request(number, ApiKey.LIST_GROUPS, groups.ListGroupsRequest())
            for number in range(900)
        ]
        stage.feed(b"".join(frames))
        with Work() as work:
            stage.node.broker.turns.clock = work.clock
            await stage.frames(900)
        assert work.longest < 10_000

    on_stage(tmp_path, act)


@pytest.mark.parametrize("api", [ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS], ids=lambda api: api.name)
def test_errors_about_many_elements_are_not_kept(api: ApiKey, tmp_path: Path) -> None:
    """Thousands of errors with their tracebacks took most of a second to be freed."""
    creation = acls.AclCreation(
        resource_type=0, resource_name="x", principal="x", host="x", operation=0, permission_type=0
    )
    unknown = acls.DeleteAclsFilter(resource_type_filter=0, operation=0, permission_type=0)
    requests: dict[ApiKey, Message] = {
        ApiKey.CREATE_ACLS: acls.CreateAclsRequest(creations=[creation] * 300),
        ApiKey.DELETE_ACLS: acls.DeleteAclsRequest(filters=[unknown] * 300),
    }
    asked: list[int] = []
    counts: list[int] = []

    def count_errors() -> float:
        """As the clock of requests that give way, it is asked after every element."""
        asked.append(1)
        if len(asked) % 50 == 0:
            counts.append(sum(isinstance(each, InvalidArgument) for each in gc.get_objects()))
        return 0.0

    async def act(stage: Stage) -> None:
        stage.node.broker.turns.clock = count_errors
        stage.feed(stage.request(1, api, requests[api], ADVERTISED[api].last))
        ((_, answer),) = await stage.answers(1)
        assert error_of(answer) == ErrorCode.INVALID_REQUEST

    on_stage(tmp_path, act)
    assert len(asked) >= 300
    assert max(counts) < 10


def new_topics(count: int, **options: int) -> admin.CreateTopicsRequest:
    topics = [
        admin.CreatableTopic(
            name=f"new-{number}", **{"num_partitions": 1, "replication_factor": 1, **options}
        )
        for number in range(count)
    ]
    return admin.CreateTopicsRequest(topics=topics, timeout_ms=1_000, validate_only=True)


@pytest.mark.parametrize("version", [4, 5])
def test_a_new_topic_is_judged_in_few_calls_and_its_options_are_shared(
    version: int, tmp_path: Path
) -> None:
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1

    async def act(stage: Stage) -> None:
        handler = TopicHandler(stage.storage, stage.node.config.kafka, Turns(lambda: 0.0))
        sys.setprofile(count)
        answer = await handler.create(new_topics(500), version)
        sys.setprofile(None)
        shown = {id(topic.configs) for topic in answer.topics if topic.configs}
        assert len(shown) == (version >= 5)
        assert calls < 500 * 300

    on_stage(tmp_path, act)


def test_a_request_that_only_validates_ends_when_its_client_is_gone(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.node.broker.turns.clock = iter(range(100_000)).__next__  # type: ignore[assignment]
        stage.feed(stage.request(1, ApiKey.CREATE_TOPICS, new_topics(900), 7))
        task = stage.connection.task
        assert task is not None
        for _ in range(3):  # The connection and then the request have given way.
            await stage.node.broker.turns.give_way()
        stage.lose()
        with Work() as work:
            await asyncio.wait({task})
        assert work.calls < 1_000

    on_stage(tmp_path, act)


def test_topics_that_are_validated_together_must_fit_together(tmp_path: Path) -> None:
    def check(answer: Message) -> None:
        assert isinstance(answer, admin.CreateTopicsResponse)
        codes = [topic.error_code for topic in answer.topics]
        assert codes == [ErrorCode.NONE] * 2 + [ErrorCode.POLICY_VIOLATION]

    ask(tmp_path, ApiKey.CREATE_TOPICS, new_topics(3, num_partitions=8_000), check)


def ask(tmp_path: Path, api: ApiKey, message: Message, check: Callable[[Message], None]) -> None:
    """Sends one request to a broker that has a topic of four partitions."""

    async def act(stage: Stage) -> None:
        await stage.create(shards=4)
        stage.feed(stage.request(1, api, message, ADVERTISED[api].last))
        ((_, answer),) = await stage.answers(1)
        check(answer)

    on_stage(tmp_path, act)


def test_metadata_describes_a_topic_once_however_often_it_is_named(tmp_path: Path) -> None:
    wanted = metadata.MetadataRequestTopic(name=TOPIC)
    unknown = metadata.MetadataRequestTopic(name="unknown")
    request = metadata.MetadataRequest(
        topics=[wanted, unknown] * 5, allow_auto_topic_creation=False
    )

    def check(answer: Message) -> None:
        assert isinstance(answer, metadata.MetadataResponse)
        found = [(topic.name, len(topic.partitions), topic.error_code) for topic in answer.topics]
        assert found == [
            (TOPIC, 4, ErrorCode.NONE),
            ("unknown", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]

    ask(tmp_path, ApiKey.METADATA, request, check)


def test_a_request_creates_only_some_of_the_topics_it_names(tmp_path: Path) -> None:
    """Clients ask again about topics that are not available yet."""

    async def act(stage: Stage) -> None:
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=f"new-{number}") for number in range(150)]
        )
        codes = []
        for _ in range(2):
            stage.feed(stage.request(1, ApiKey.METADATA, request, 4))
            ((_, answer),) = await stage.answers(1)
            assert isinstance(answer, metadata.MetadataResponse)
            codes.append([topic.error_code for topic in answer.topics])
        assert codes[0] == [ErrorCode.NONE] * 100 + [ErrorCode.LEADER_NOT_AVAILABLE] * 50
        assert codes[1] == [ErrorCode.NONE] * 150

    on_stage(tmp_path, act)


def test_a_request_for_many_groups_is_answered_for_each(tmp_path: Path) -> None:
    wanted = offsets.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    request = offsets.OffsetFetchRequest(
        groups=[
            offsets.OffsetFetchRequestGroup(group_id=f"g{number}", topics=topics)
            for number in range(250)
            for topics in ([wanted], None, None)
        ]
    )

    def check(answer: Message) -> None:
        assert isinstance(answer, offsets.OffsetFetchResponse)
        names = [group.group_id for group in answer.groups]
        assert names == [f"g{number}" for number in range(250)]
        assert all(len(group.topics) == 1 for group in answer.groups)

    ask(tmp_path, ApiKey.OFFSET_FETCH, request, check)


def test_a_group_is_answered_once_with_all_topics_it_was_asked_for(tmp_path: Path) -> None:
    request = offsets.OffsetFetchRequest(
        groups=[
            offsets.OffsetFetchRequestGroup(
                group_id="g",
                topics=[offsets.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[index])],
            )
            for index in (0, 3)
        ],
        require_stable=True,
    )

    def check(answer: Message) -> None:
        assert isinstance(answer, offsets.OffsetFetchResponse)
        (group,) = answer.groups
        assert [each.partition_index for t in group.topics for each in t.partitions] == [0, 3]

    ask(tmp_path, ApiKey.OFFSET_FETCH, request, check)


def test_configs_of_a_resource_are_described_once_with_all_keys_asked_for(tmp_path: Path) -> None:
    resources = [
        admin.DescribeConfigsResource(
            resource_type=2, resource_name=TOPIC, configuration_keys=[key]
        )
        for key in ("retention.ms", "cleanup.policy", "retention.ms")
    ]

    def check(answer: Message) -> None:
        assert isinstance(answer, admin.DescribeConfigsResponse)
        (result,) = answer.results
        assert [each.name for each in result.configs] == ["cleanup.policy", "retention.ms"]

    ask(tmp_path, ApiKey.DESCRIBE_CONFIGS, admin.DescribeConfigsRequest(resources=resources), check)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["delete"] * 2, "is named twice for one topic"),
        (["x," * 3_000], "may have 4,096 characters, not 6,000"),
    ],
)
def test_an_option_is_changed_once_and_to_a_value_of_bounded_length(
    values: list[str], reason: str, tmp_path: Path
) -> None:
    """So the options of a topic are judged in one short step."""
    changes = [
        admin.IncrementalAlterableConfig(name="cleanup.policy", config_operation=2, value=value)
        for value in values
    ]
    topic = admin.IncrementalAlterConfigsResource(
        resource_type=2, resource_name=TOPIC, configs=changes
    )

    def check(answer: Message) -> None:
        assert isinstance(answer, admin.IncrementalAlterConfigsResponse)
        (result,) = answer.responses
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert reason in (result.error_message or "")

    request = admin.IncrementalAlterConfigsRequest(resources=[topic], validate_only=True)
    ask(tmp_path, ApiKey.INCREMENTAL_ALTER_CONFIGS, request, check)


def test_groups_are_described_once_however_often_they_are_named(tmp_path: Path) -> None:
    request = groups.DescribeGroupsRequest(groups=["a", "b", "a"])

    def check(answer: Message) -> None:
        assert isinstance(answer, groups.DescribeGroupsResponse)
        assert [group.group_id for group in answer.groups] == ["a", "b"]

    ask(tmp_path, ApiKey.DESCRIBE_GROUPS, request, check)


@pytest.mark.parametrize(
    ("frame_of", "limit"),
    [
        (
            lambda stage: stage.request(
                1,
                ApiKey.METADATA,
                metadata.MetadataRequest(
                    topics=[metadata.MetadataRequestTopic(name=f"{i:08}") for i in range(50_001)]
                ),
                0,
            ),
            "request_elements",
        ),
        (
            lambda stage: stage.request(
                1,
                ApiKey.JOIN_GROUP,
                groups.JoinGroupRequest(
                    group_id="g",
                    session_timeout_ms=6_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=[
                        groups.JoinGroupRequestProtocol(name=f"p{i}", metadata=b"")
                        for i in range(element_count_max_of(ApiKey.JOIN_GROUP) + 1)
                    ],
                ),
                0,
            ),
            "request_elements",
        ),
        (
            lambda stage: stage.request(
                1,
                ApiKey.SYNC_GROUP,
                groups.SyncGroupRequest(
                    group_id="g",
                    generation_id=1,
                    member_id="m",
                    assignments=[
                        groups.SyncGroupRequestAssignment(
                            member_id="m", assignment=bytes(REQUEST_BYTES_MAX)
                        )
                    ],
                ),
                0,
            ),
            "request_bytes",
        ),
    ],
    ids=["elements", "elements of its kind", "bytes"],
)
def test_a_request_beyond_its_bounds_is_refused_by_an_answer_and_counted(
    frame_of: Callable[[Stage], bytes], limit: str, tmp_path: Path
) -> None:
    async def act(stage: Stage) -> None:
        stage.feed(frame_of(stage))
        ((_, answer),) = await stage.answers(1)
        assert error_of(answer) == ErrorCode.INVALID_REQUEST
        assert stage.node.broker.statistics.closed_by_limit == {limit: 1}
        # The connection goes on.
        stage.feed(stage.request(2, ApiKey.LIST_GROUPS, groups.ListGroupsRequest()))
        assert await stage.answers(1)
        assert not stage.transport.is_closed
        stage.connection.shrink()
        assert stage.node.broker.budget.used_bytes == 0

    on_stage(tmp_path, act)


def test_requests_that_gave_way_go_on_one_per_turn_in_order() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = iter(range(1_000))
        turns = Turns(lambda: float(next(clock)))  # Every look at the clock finds a second gone.
        turn = 0
        worked: list[tuple[int, str]] = []

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        async def work(name: str) -> None:
            async for _ in turns.over(range(3)):
                worked.append((turn, name))

        loop.call_soon(count)
        await asyncio.gather(work("a"), work("b"), work("c"))
        # The first piece is done at once; from then on there is one in each turn.
        assert [name for _, name in worked] == [*"abc"] * 3
        later = [at for at, _ in worked[3:]]
        assert len(set(later)) == len(later)

    asyncio.run(main())


def test_a_fetch_reads_a_partition_once_and_counts_what_it_takes_while_it_waits(
    tmp_path: Path,
) -> None:
    def wanted(index: int) -> produce_fetch.FetchPartition:
        return produce_fetch.FetchPartition(
            partition=index, fetch_offset=0, partition_max_bytes=1_000
        )

    request = produce_fetch.FetchRequest(
        max_wait_ms=30_000,
        min_bytes=1,
        topics=[
            produce_fetch.FetchTopic(topic=TOPIC, partitions=[wanted(n % 4) for n in range(1_000)]),
            produce_fetch.FetchTopic(topic=TOPIC, partitions=[wanted(1)]),
        ],
    )

    async def act(stage: Stage) -> None:
        await stage.create(shards=4)
        budget = stage.node.broker.budget
        frame = stage.request(1, ApiKey.FETCH, request, 11)
        stage.feed(frame)
        while budget.used_bytes < 1_001 * 256:
            await stage.node.broker.turns.give_way()
        await append_to(stage.storage, TOPIC, 2, batch_of(b"v"))
        ((_, answer),) = await stage.answers(1)
        assert isinstance(answer, produce_fetch.FetchResponse)
        found = [part.partition_index for topic in answer.responses for part in topic.partitions]
        assert found == [0, 1, 2, 3]
        stage.connection.shrink()
        assert budget.used_bytes == 0

    on_stage(tmp_path, act)


def test_a_request_that_is_given_up_while_it_waits_does_not_hold_up_others() -> None:
    async def main() -> None:
        turns = Turns()
        first = asyncio.ensure_future(turns.give_way())
        second = asyncio.ensure_future(turns.give_way())
        # Both have begun to wait when the event loop comes to this.
        asyncio.get_running_loop().call_soon(first.cancel)
        await asyncio.wait_for(second, 60)

    asyncio.run(main())
