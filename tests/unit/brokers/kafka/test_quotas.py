"""Quotas: whom they are about, what is counted, and what clients beyond them see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import admin, clients, groups
from firnmq.brokers.kafka.quotas.limiter import BURST_S, WAIT_S_MAX, Bucket, QuotaLimiter
from firnmq.brokers.kafka.quotas.model import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    Limits,
    Quota,
    checked_entity,
    checked_limit,
)
from firnmq.brokers.kafka.quotas.timing import Timed
from firnmq.errors import InvalidArgument
from tests.unit.brokers.kafka.stage import Stage, batch_of, on_stage

PRODUCE = Quota.PRODUCE_BYTES


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = Bucket(100.0, 0.0)
    assert bucket.take(100.0 * BURST_S, 0.0) == 0.0
    assert bucket.take(50.0, 0.0) == 0.5
    assert bucket.take(0.0, 0.5) == 0.0
    assert bucket.take(50.0, 10.0) == 0.0, "it fills up again, and not beyond the burst"
    assert bucket.take(100.0 * BURST_S, 10.0) == 0.5
    assert bucket.take(1e9, 10.0) == WAIT_S_MAX


def test_the_narrowest_quota_counts() -> None:
    everyone: Entity = ((USER, None),)
    ann: Entity = ((USER, "ann"),)
    app: Entity = ((CLIENT_ID, "app"),)
    ann_app: Entity = ((CLIENT_ID, "app"), (USER, "ann"))
    order = [ann_app, ((CLIENT_ID, None), (USER, "ann")), ann]
    order += [((CLIENT_ID, "app"), (USER, None)), ((CLIENT_ID, None), (USER, None)), everyone]
    order += [app, ((CLIENT_ID, None),)]
    limits: dict[Entity, Limits] = {
        entity: {PRODUCE: float(place + 1)} for place, entity in enumerate(order)
    }
    clock = Clock()
    for place, entity in enumerate(order):
        current = dict(limits)
        limiter = QuotaLimiter(lambda current=current: current, clock)  # type: ignore[misc]
        found = limiter.of("ann", "app")
        assert found is not None
        rate = place + 1.0
        assert found.take(PRODUCE, rate * (BURST_S + 1)) == pytest.approx(1.0)
        del limits[entity]
    assert QuotaLimiter(lambda: limits, clock).of("ann", "app") is None


def test_defaults_are_counted_for_each_client_apart() -> None:
    clock = Clock()
    limits: dict[Entity, Limits] = {((USER, None),): {PRODUCE: 10.0}}
    limiter = QuotaLimiter(lambda: limits, clock)
    ann, bob = limiter.of("ann", "x"), limiter.of("bob", "x")
    assert ann is not None
    assert bob is not None
    assert ann.take(PRODUCE, 30.0) == 1.0
    assert bob.take(PRODUCE, 20.0) == 0.0
    again = limiter.of("ann", "y")
    assert again is not None
    assert again.take(PRODUCE, 0.0) == 1.0, "client ids of a user share the user's quota"
    assert not ann.has(Quota.FETCH_BYTES)


def test_addresses_have_a_rate_of_connections() -> None:
    limits: dict[Entity, Limits] = {
        ((IP, None),): {Quota.CONNECTIONS: 1.0},
        ((IP, "10.0.0.1"),): {Quota.CONNECTIONS: 100.0},
    }
    limiter = QuotaLimiter(lambda: limits, Clock())
    waits = [limiter.connection_wait_s("10.0.0.2") for _ in range(4)]
    assert [wait > 0 for wait in waits] == [False, False, True, True]
    assert limiter.connection_wait_s("10.0.0.3") == 0.0
    assert not any(limiter.connection_wait_s("10.0.0.1") for _ in range(50))


@pytest.mark.parametrize("parts", [{}, {"host": "x"}, {IP: "x", USER: "y"}, {USER: ""}])
def test_bad_entities_are_refused(parts: dict[str, str | None]) -> None:
    with pytest.raises(InvalidArgument):
        checked_entity(parts)


@pytest.mark.parametrize(
    "parts, key, value",
    [
        ({USER: "a"}, "bytes", 1.0),
        ({USER: "a"}, "connection_creation_rate", 1.0),
        ({IP: "a"}, "producer_byte_rate", 1.0),
        ({USER: "a"}, "producer_byte_rate", 0.0),
        ({USER: "a"}, "producer_byte_rate", float("nan")),
        ({USER: "a"}, "producer_byte_rate", float("inf")),
    ],
)
def test_bad_limits_are_refused(parts: dict[str, str | None], key: str, value: float) -> None:
    with pytest.raises(InvalidArgument):
        checked_limit(checked_entity(parts), key, value)


def test_only_what_runs_is_timed() -> None:
    clock = Clock()

    async def work() -> str:
        clock.now_s += 1.0
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        loop.call_soon(tick, future)
        found = await future
        clock.now_s += 2.0
        with pytest.raises(ZeroDivisionError):
            await asyncio.ensure_future(fail())
        return found

    def tick(future: asyncio.Future[str]) -> None:
        clock.now_s += 10.0
        future.set_result("found")

    async def fail() -> None:
        raise ZeroDivisionError

    timed = Timed(clock)
    assert asyncio.run(timed.run(work())) == "found"
    assert timed.spent_s == 3.0


# Through the broker -------------------------------------------------------------------------------


async def until(is_so: Callable[[], bool]) -> None:
    """Returns in one of the next turns of the event loop."""
    loop = asyncio.get_running_loop()
    while not is_so():
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def ask(stage: Stage, key: ApiKey, version: int, request: Message) -> Any:
    stage.feed(stage.request(900, key, request, version))
    ((_, answer),) = await stage.answers(1)
    return answer


async def limit(stage: Stage, key: str, value: float | None, **parts: str | None) -> int:
    entity = [
        clients.QuotaEntity(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in parts.items()
    ]
    op = clients.QuotaOp(key=key, value=value or 0.0, remove=value is None)
    request = clients.AlterClientQuotasRequest(
        entries=[clients.AlteredQuota(entity=entity, ops=[op])]
    )
    answer = await ask(stage, ApiKey.ALTER_CLIENT_QUOTAS, 1, request)
    code: int = answer.entries[0].error_code
    return code


async def described(stage: Stage, *components: clients.QuotaComponent, strict: bool = False) -> Any:
    request = clients.DescribeClientQuotasRequest(components=components, strict=strict)
    answer = await ask(stage, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, request)
    if answer.error_code:
        return answer.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries
    }


def test_quotas_are_set_shown_kept_and_removed(tmp_path: Path) -> None:
    async def set_some(stage: Stage) -> None:
        assert await limit(stage, "producer_byte_rate", 5e6, user="ann") == 0
        assert await limit(stage, "request_percentage", 50.0, user="ann") == 0
        assert await limit(stage, "consumer_byte_rate", 1e6, user=None, client_id="app") == 0
        assert await limit(stage, "connection_creation_rate", 9.0, ip=None) == 0
        assert await limit(stage, "nonsense", 1.0, user="ann") == ErrorCode.INVALID_REQUEST

    async def look(stage: Stage) -> None:
        exact = clients.QuotaComponent(entity_type="user", match_type=0, match="ann")
        any_user = clients.QuotaComponent(entity_type="user", match_type=2)
        default = clients.QuotaComponent(entity_type="user", match_type=1)
        ann = {(("user", "ann"),): {"producer_byte_rate": 5e6, "request_percentage": 50.0}}
        both = {(("client-id", "app"), ("user", None)): {"consumer_byte_rate": 1e6}}
        assert await described(stage, exact) == ann
        assert await described(stage, any_user) == ann | both
        assert await described(stage, any_user, strict=True) == ann
        assert await described(stage, default) == both
        assert len(await described(stage)) == 3
        twice = (exact, exact)
        assert await described(stage, *twice) == ErrorCode.INVALID_REQUEST
        assert await limit(stage, "producer_byte_rate", None, user="ann") == 0
        assert await limit(stage, "request_percentage", None, user="ann") == 0
        assert await described(stage, exact) == {}

    on_stage(tmp_path, set_some)
    on_stage(tmp_path, look)


def test_a_producer_beyond_its_quota_is_told_and_waits(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        batch = batch_of(b"v" * 1_000)
        stage.feed(stage.produce(1, batch))
        ((_, free),) = await stage.answers(1)
        assert free.throttle_time_ms == 0  # type: ignore[attr-defined]
        assert await limit(stage, "producer_byte_rate", 100.0, client_id="me") == 0
        assert stage.connection.produce_route is None, "each request is counted from now on"
        # The burst is 200 bytes: the answer comes at once, and says how long the rest takes.
        stage.feed(stage.produce(2, batch) + stage.produce(3, batch))
        ((number, told),) = await stage.answers(1)
        assert number == 2
        assert 5_000 < told.throttle_time_ms <= 30_000  # type: ignore[attr-defined]
        # The next request is not begun before that. The end of the connection ends the wait.
        await until(lambda: stage.connection in stage.node.broker._throttle._waiting)
        stage.lose()
        await asyncio.wait_for(stage.connection.task, 60)  # type: ignore[arg-type]

    on_stage(tmp_path, act)


def test_a_fetch_beyond_its_quota_is_told(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        stage.feed(stage.produce(1, batch_of(b"v" * 5_000)))
        await stage.answers(1)
        assert await limit(stage, "consumer_byte_rate", 1_000.0, user="ANONYMOUS") == 0
        stage.feed(stage.fetch(2, 0))
        ((_, told),) = await stage.answers(1)
        assert 1_000 < told.throttle_time_ms <= 4_000  # type: ignore[attr-defined]
        assert stage.connection.fetch_route is None

    on_stage(tmp_path, act)


def test_time_of_requests_is_counted(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        assert await limit(stage, "request_percentage", 1e-6, user=None) == 0
        answer = await ask(stage, ApiKey.LIST_GROUPS, 4, groups.ListGroupsRequest())
        assert answer.throttle_time_ms > 0

    on_stage(tmp_path, act)


def test_topics_are_made_no_faster_than_the_quota_says(tmp_path: Path) -> None:
    def create(name: str) -> admin.CreateTopicsRequest:
        topic = admin.CreatableTopic(name=name, num_partitions=3, replication_factor=1)
        return admin.CreateTopicsRequest(topics=[topic])

    async def act(stage: Stage) -> None:
        assert await limit(stage, "controller_mutation_rate", 0.001, user=None) == 0
        first = await ask(stage, ApiKey.CREATE_TOPICS, 7, create("first"))
        assert first.topics[0].error_code == 0, "what is there of a quota is enough for one request"
        for key, version, request in (
            (ApiKey.CREATE_TOPICS, 7, create("second")),
            (
                ApiKey.DELETE_TOPICS,
                5,
                admin.DeleteTopicsRequest(topic_names=["first"], timeout_ms=1),
            ),
            (
                ApiKey.DELETE_TOPICS,
                6,
                admin.DeleteTopicsRequest(
                    topics=[admin.DeleteTopicState(name="first")], timeout_ms=1
                ),
            ),
            (
                ApiKey.CREATE_PARTITIONS,
                3,
                admin.CreatePartitionsRequest(
                    topics=[admin.CreatePartitionsTopic(name="first", count=9)], timeout_ms=1
                ),
            ),
        ):
            refused = await ask(stage, key, version, request)
            results = getattr(refused, "topics", None) or getattr(refused, "responses", None)
            results = results or refused.results
            assert results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert refused.throttle_time_ms > 0
        assert stage.storage.find("second") is None
        # Clients that do not know of this are slowed instead.
        late = await ask(stage, ApiKey.CREATE_TOPICS, 5, create("third"))
        assert (late.topics[0].error_code, late.throttle_time_ms > 0) == (0, True)
        stage.node.broker._throttle.release(stage.connection)

    on_stage(tmp_path, act)
