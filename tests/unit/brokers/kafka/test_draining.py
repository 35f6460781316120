"""A connection that holds requests and does not take its answers ends when others need the room."""

from __future__ import annotations

from pathlib import Path

from firnmq.brokers.kafka.protocol import ApiKey
from firnmq.brokers.kafka.protocol.messages import groups
from firnmq.brokers.net.byte_budget import ByteBudget, ByteShare, FrameRoom
from firnmq.brokers.net.client_progress import STALL_S, DrainWatch
from firnmq.brokers.net.memory_pressure import AGE_S
from tests.unit.brokers.kafka.stage import Stage, on_stage

BUDGET = 1024 * 1024


def test_progress_is_seen_whenever_one_looks() -> None:
    watch = DrainWatch()
    watch.begin(1_000, 0.0)
    assert not watch.is_stuck(1_000, STALL_S)
    assert not watch.is_stuck(400, STALL_S + 5), "half of it was taken"
    assert not watch.is_stuck(400, 2 * STALL_S + 5)
    assert watch.is_stuck(400, 2 * STALL_S + 6)


def test_single_bytes_are_no_progress() -> None:
    watch = DrainWatch()
    watch.begin(100_000, 0.0)
    for taken in range(1, 10):
        assert not watch.is_stuck(100_000 - taken, STALL_S / 2)
    assert watch.is_stuck(99_990, STALL_S + 1)
    watch.begin(100_000, 10.0)
    assert not watch.is_stuck(150_000, 10.5), "more was written"
    assert not watch.is_stuck(80_000, 10.0 + 2 * STALL_S), "the client has taken 70,000 bytes"


def unread(stage: Stage) -> None:
    """The client sends and does not read: its transport is full, and a request is held."""
    stage.transport.left_bytes = 100_000
    stage.connection.pause_writing()
    stage.feed(stage.request(1, ApiKey.LIST_GROUPS, groups.ListGroupsRequest()))


class Waiting:
    """Another client's frame for which there is no memory."""

    def __init__(self, stage: Stage) -> None:
        self._budget = stage.node.broker.budget
        self._budget.take(BUDGET)
        self._room = FrameRoom(ByteShare(self._budget, BUDGET), 100_000)
        assert not self._room.take_step(lambda: None, now_s=stage.connection.loop.time() - 60)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._room.give_back()
        self._budget.give_back(BUDGET)


def relieve(stage: Stage, after_s: float) -> bool:
    """Looks at a later time; whether the connection was closed."""
    broker = stage.node.broker
    broker.pressure.relieve(stage.connection.loop.time() + after_s)
    return stage.transport.is_closed


def test_a_client_that_does_not_read_is_closed_while_others_wait(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        unread(stage)
        assert not relieve(stage, STALL_S + 1), "nobody needs the memory"
        with Waiting(stage):
            stage.connection.pause_writing()
            assert not relieve(stage, STALL_S / 2)
            stage.transport.left_bytes -= 70_000
            assert not relieve(stage, STALL_S + 1), "it reads after all"
            assert relieve(stage, 2 * STALL_S + 2)
            assert stage.node.broker.statistics.closed_by_limit == {"memory": 1}
        stage.connection.resume_writing()

    on_stage(tmp_path, act, total_bytes_in_flight_max=BUDGET)


def test_what_the_client_took_before_others_waited_gives_it_no_more_time(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        unread(stage)
        stage.transport.left_bytes -= 70_000
        assert stage.connection.overdue(stage.connection.loop.time()) is None
        with Waiting(stage):
            assert relieve(stage, STALL_S + 1)
        stage.connection.resume_writing()

    on_stage(tmp_path, act, total_bytes_in_flight_max=BUDGET)


def test_a_half_sent_frame_of_a_client_that_stalls_is_given_up(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.feed((300_000).to_bytes(4, "big") + bytes(100_000))
        assert stage.node.broker.budget.used_bytes == 300_000
        with Waiting(stage):
            assert not relieve(stage, AGE_S / 2)
            assert relieve(stage, STALL_S + 1)
            assert stage.node.broker.budget.used_bytes == BUDGET, "its memory is back"

    on_stage(tmp_path, act, total_bytes_in_flight_max=BUDGET)


def test_single_bytes_do_not_keep_a_half_sent_frame(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.feed((300_000).to_bytes(4, "big") + bytes(100_000))
        with Waiting(stage):
            for _ in range(10):
                stage.feed(b"x")
            assert relieve(stage, STALL_S + 1)

    on_stage(tmp_path, act, total_bytes_in_flight_max=BUDGET)


def test_a_half_sent_small_frame_is_memory_too(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.feed((60_000).to_bytes(4, "big") + bytes(1_000))
        assert stage.node.broker.budget.used_bytes == 60 * 1024, "the buffer is counted"
        with Waiting(stage):
            assert relieve(stage, STALL_S + 1)

    on_stage(tmp_path, act, total_bytes_in_flight_max=BUDGET)


def test_a_frame_that_has_memory_is_read_although_no_more_is_left(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.feed((300_000).to_bytes(4, "big") + bytes(10_000))
        with Waiting(stage):
            stage.feed(bytes(100_000))
            assert stage.transport.is_read, "no answer is to come that would wake it"

    on_stage(tmp_path, act, total_bytes_in_flight_max=BUDGET)


def test_an_idle_connection_gives_its_buffer_back(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        many = stage.request(1, ApiKey.LIST_GROUPS, groups.ListGroupsRequest()) * 300
        stage.feed(many)
        await stage.answers(300)
        budget = stage.node.broker.budget
        assert budget.used_bytes > 0
        stage.node.broker.close_overdue()
        assert budget.used_bytes == 0
        stage.feed(stage.request(2, ApiKey.LIST_GROUPS, groups.ListGroupsRequest()))
        await stage.answers(1)

    on_stage(tmp_path, act)


def test_connections_of_one_address_and_user_have_one_share(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        same, user = Stage(stage.node), Stage(stage.node)
        broker = stage.node.broker
        assert stage.connection.share is same.connection.share
        broker._enter_share(user.connection, "ada")
        assert user.connection.share is not stage.connection.share
        assert not isinstance(user.connection.share, ByteBudget)
        same.connection.connection_lost(None)
        user.connection.connection_lost(None)
        assert len(broker._shares) == 1

    on_stage(tmp_path, act)
