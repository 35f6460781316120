"""The I/O pool: order, turns, back-pressure, and what becomes of requests when things end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from firnmq.disk import IoPool, Ticket, Turn, run_blocking
from firnmq.disk.pool import PoolLimits
from firnmq.errors import Closed, InvalidArgument, StorageFailed


class Request:
    def __init__(self, name: object, size_bytes: int = 1) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.ticket: Ticket[object]


class Handler:
    """Notes its turns; stands still while the gate is closed."""

    def __init__(self) -> None:
        self.turns: list[list[object]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None
        self.tick_failure: Exception | None = None
        self.tick_after: float | None = None
        self.ticked = threading.Event()
        self.is_closed = False

    def run(self, turn: Turn[Request]) -> None:
        self.turns.append([request.name for request in turn.requests])
        self.entered.set()
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        for request in turn.requests:
            turn.settlement.resolve(request.ticket, request.name)

    def tick(self) -> float | None:
        if self.tick_failure is not None:
            failure, self.tick_failure = self.tick_failure, None
            raise failure
        if self.turns:
            self.ticked.set()
        return self.tick_after

    def close(self) -> None:
        self.is_closed = True

    def hold(self) -> None:
        self.gate.clear()
        self.entered.clear()

    def names(self) -> list[object]:
        return [name for turn in self.turns for name in turn]


@pytest.fixture
def handlers() -> list[Handler]:
    return []


@pytest.fixture
def make_pool(handlers: list[Handler]) -> Iterator[Callable[..., IoPool[Request]]]:
    pools: list[IoPool[Request]] = []

    def make(worker_count: int = 1, **limits: int) -> IoPool[Request]:
        def handler(_: int) -> Handler:
            handlers.append(Handler())
            return handlers[-1]

        pool: IoPool[Request] = IoPool(
            worker_count=worker_count, handler=handler, limits=PoolLimits(**limits)
        )
        pools.append(pool)
        return pool

    yield make
    for handler in handlers:
        handler.gate.set()
    for pool in pools:
        pool.close()


async def submit(pool: IoPool[Request], request: Request, shard: int = 0) -> object:
    request.ticket = Ticket()
    await pool.put(shard, request)
    return await request.ticket


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Starts the work and gives its thread, and a list that will hold its outcome."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


async def test_requests_are_answered(make_pool, handlers) -> None:
    pool = make_pool()
    assert await submit(pool, Request("a")) == "a"
    thread, outcome = in_thread(lambda: run_blocking(submit(pool, Request("b"))))
    thread.join()
    assert outcome == ["b"]
    assert pool.statistics().request_count == 2


async def test_requests_of_one_shard_keep_their_order(make_pool, handlers) -> None:
    pool = make_pool(3)
    requests = [(shard, number) for number in range(50) for shard in range(6)]
    await asyncio.gather(*(submit(pool, Request(each), each[0]) for each in requests))
    for worker, handler in enumerate(handlers):
        names = handler.names()
        assert {shard % 3 for shard, _ in names} == {worker}
        for shard in range(6):
            numbers = [number for each, number in names if each == shard]
            assert numbers == sorted(numbers)


async def test_what_arrives_during_a_turn_is_one_turn(make_pool, handlers) -> None:
    pool = make_pool()
    (handler,) = handlers
    handler.hold()
    first = asyncio.ensure_future(submit(pool, Request("first")))
    await asyncio.to_thread(handler.entered.wait)
    rest = [asyncio.ensure_future(submit(pool, Request(number))) for number in range(100)]
    while pool.statistics().queued_requests < 100:
        await asyncio.wait([asyncio.ensure_future(_step())])
    handler.gate.set()
    await asyncio.gather(first, *rest)
    assert handler.turns == [["first"], list(range(100))]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [({"turn_requests": 4}, [4, 4, 2]), ({"turn_bytes": 25}, [2, 2, 2, 2, 2])],
)
async def test_a_turn_has_limits(make_pool, handlers, limits, sizes) -> None:
    pool = make_pool(**limits)
    (handler,) = handlers
    handler.hold()
    first = asyncio.ensure_future(submit(pool, Request("first")))
    await asyncio.to_thread(handler.entered.wait)
    rest = [asyncio.ensure_future(submit(pool, Request(number, 10))) for number in range(10)]
    while pool.statistics().queued_requests < 10:
        await asyncio.wait([asyncio.ensure_future(_step())])
    handler.gate.set()
    await asyncio.gather(first, *rest)
    assert [len(turn) for turn in handler.turns[1:]] == sizes


@pytest.mark.parametrize("limits", [{"queue_requests": 3}, {"queue_bytes": 30}])
async def test_tasks_wait_while_the_queue_is_full(make_pool, handlers, limits) -> None:
    pool = make_pool(**limits)
    (handler,) = handlers
    handler.hold()
    tasks = [asyncio.ensure_future(submit(pool, Request(number, 10))) for number in range(20)]
    await asyncio.to_thread(handler.entered.wait)
    await asyncio.wait([asyncio.ensure_future(_step())])
    assert pool.statistics().queued_requests <= 3
    assert pool.statistics().queued_bytes <= 30
    assert not pool.put_nowait(0, Request("refused", 10))
    tasks[15].cancel()
    handler.gate.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each for each in done if not isinstance(each, BaseException)] == [
        number for number in range(20) if number != 15
    ]


def test_threads_wait_while_the_queue_is_full(make_pool, handlers) -> None:
    pool = make_pool(queue_requests=2)
    (handler,) = handlers
    handler.hold()
    started = [
        in_thread(lambda number=number: run_blocking(submit(pool, Request(number))))
        for number in range(12)
    ]
    handler.entered.wait()
    assert pool.statistics().queued_requests <= 2
    handler.gate.set()
    for thread, _ in started:
        thread.join()
    assert sorted(outcome[0] for _, outcome in started) == list(range(12))


async def test_a_request_larger_than_the_queue_enters_an_empty_one(make_pool) -> None:
    pool = make_pool(queue_bytes=10, turn_bytes=10)
    assert await submit(pool, Request("large", 1000)) == "large"


def test_closing_serves_what_is_queued_and_refuses_the_rest(make_pool, handlers) -> None:
    pool = make_pool(queue_requests=5)
    (handler,) = handlers
    handler.hold()
    started = [
        in_thread(lambda number=number: run_blocking(submit(pool, Request(number))))
        for number in range(10)
    ]
    handler.entered.wait()
    while pool.statistics().queued_requests < 5:
        pass
    closing, _ = in_thread(pool.close)
    while not pool._lanes[0].closed:
        pass
    handler.gate.set()
    closing.join()
    for thread, _ in started:
        thread.join()
    outcomes = [outcome[0] for _, outcome in started]
    refused = [each for each in outcomes if isinstance(each, Closed)]
    served = [each for each in outcomes if isinstance(each, int)]
    assert sorted(served) == sorted(handler.names())
    assert len(served) + len(refused) == 10
    assert len(served) >= 6
    assert handler.is_closed
    with pytest.raises(Closed):
        pool.put_nowait(0, Request("late"))


async def test_a_defect_of_the_handler_fails_its_requests_only(make_pool, handlers) -> None:
    pool = make_pool()
    (handler,) = handlers
    handler.failure = ZeroDivisionError("a defect")
    with pytest.raises(StorageFailed) as caught:
        await submit(pool, Request("a"))
    assert isinstance(caught.value.cause, ZeroDivisionError)
    handler.failure = InvalidArgument("x", "typed errors stay as they are")
    with pytest.raises(InvalidArgument):
        await submit(pool, Request("b"))
    handler.failure = None
    assert await submit(pool, Request("c")) == "c"


async def test_a_defect_of_the_tick_does_not_end_the_worker(make_pool, handlers) -> None:
    pool = make_pool()
    (handler,) = handlers
    handler.tick_failure = ZeroDivisionError("a defect")
    assert await submit(pool, Request("a")) == "a"
    assert await submit(pool, Request("b")) == "b"
    assert handler.tick_failure is None


async def test_a_tick_comes_without_requests_when_asked_for(make_pool, handlers) -> None:
    pool = make_pool()
    (handler,) = handlers
    handler.tick_after = 0.0
    await submit(pool, Request("a"))
    handler.ticked.clear()
    assert await asyncio.to_thread(handler.ticked.wait, 10)


async def _step() -> None:
    """Ends at once: waiting for it lets other tasks take a step."""
