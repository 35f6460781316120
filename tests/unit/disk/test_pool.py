"""The I/O pool: order, turns, back-pressure, and what becomes of requests when things end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import firnmq.disk.pool as pool_module
from firnmq.disk import IoPool, Notice, Ticket, Turn, run_blocking
from firnmq.disk.pool import PoolLimits
from firnmq.errors import AppendTimedOut, Closed, InvalidArgument, StorageFailed


class Request:
    def __init__(self, name: object, size_bytes: int = 1) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.ticket: Ticket[object]
        self.deadline_s: float | None = None

    def overdue(self) -> AppendTimedOut:
        return AppendTimedOut(is_unknown=False)


class Handler:
    """Notes its turns; stands still while the gate is closed."""

    def __init__(self) -> None:
        self.turns: list[list[object]] = []
        self.threads: list[int] = []
        """Who took each turn."""
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None
        self.tick_failure: Exception | None = None
        self.tick_after: float | None = None
        self.ticked = threading.Event()
        self.is_closed = False
        self.parked: list[Request] = []
        self.parks: set[object] = set()
        """Names of requests that are parked."""

    @property
    def has_parked(self) -> bool:
        return bool(self.parked)

    def run(self, turn: Turn[Request]) -> None:
        turn.requests[:0] = [each for each in self.parked if each.name not in self.parks]
        self.parked = [each for each in self.parked if each.name in self.parks]
        parked = [each for each in turn.requests if each.name in self.parks]
        turn.requests = [each for each in turn.requests if each not in parked]
        self.parked += parked
        self.turns.append([request.name for request in turn.requests])
        self.threads.append(threading.get_ident())
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


@pytest.fixture(autouse=True)
def no_slow_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls for a moment must not send the loop's next turns to the worker."""
    monkeypatch.setattr(pool_module, "_INLINE_SLOW_S", 3_600)


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
    await pool.wait_for_room(shard, request)
    pool.submit([(shard, request)])
    return await request.ticket


def submit_all(
    pool: IoPool[Request],
    requests: list[tuple[int, Request]],
    inline_in: asyncio.AbstractEventLoop | None,
) -> None:
    for shard, request in requests:
        assert pool.lane(shard).reserve(request.size_bytes)
    pool.submit(requests, inline_in)


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


async def submit_gathering(pool: IoPool[Request], request: Request) -> object:
    request.ticket = Ticket()
    await pool.wait_for_room(0, request)
    pool.submit([(0, request)], gather_in=request.ticket.loop)
    return await request.ticket


async def wait_until_idle(pool: IoPool[Request]) -> None:
    async with asyncio.timeout(60):
        while not pool.lane(0).worker_waits:
            await _step()


async def test_what_is_ready_together_on_a_loop_is_one_turn(make_pool, handlers) -> None:
    pool = make_pool()
    for _ in range(2):
        await wait_until_idle(pool)
        await asyncio.gather(*(submit_gathering(pool, Request(number)) for number in range(100)))
    assert handlers[0].turns == [list(range(100))] * 2


async def test_a_loop_that_stopped_while_it_gathered_keeps_no_other_waiting(make_pool) -> None:
    pool = make_pool()
    await wait_until_idle(pool)

    def stop_before_the_wake() -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(loop.stop)  # Ends the only round of callbacks.
        task = loop.create_task(submit_gathering(pool, Request("stopped")))
        loop.run_forever()
        assert pool.lane(0).gathering_loop is loop
        task.cancel()
        loop.close()

    await asyncio.to_thread(stop_before_the_wake)
    async with asyncio.timeout(60):
        assert await submit_gathering(pool, Request("other")) == "other"
    assert pool.statistics().request_count == 2


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
    async with asyncio.timeout(60):
        while pool.lane(0).held_count < 3:  # The first turn may have been all that was queued.
            await asyncio.wait([asyncio.ensure_future(_step())])
    assert pool.statistics().queued_requests <= 3
    assert pool.statistics().queued_bytes <= 30
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
        run_blocking(submit(pool, Request("late")))


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
    assert await asyncio.to_thread(handler.ticked.wait, 60)


async def _step() -> None:
    """Ends at once: waiting for it lets other tasks take a step."""


# Turns taken by an event loop -------------------------------------------------------------------


class Outcomes:
    """What tickets were settled with, in that order."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.all: list[tuple[object, BaseException | None]] = []
        self._came = asyncio.Event()

    def request(self, name: object) -> Request:
        request = Request(name)
        request.ticket = Noted(self)
        return request

    def add(self, value: object, error: BaseException | None) -> None:
        self.all.append((value, error))
        self._came.set()

    async def wait(self, count: int) -> None:
        while len(self.all) < count:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 60)


class Noted(Notice[object]):
    def __init__(self, outcomes: Outcomes) -> None:
        super().__init__(outcomes.loop)
        self._outcomes = outcomes

    def settled(self, value: object, error: BaseException | None) -> None:
        self._outcomes.add(value, error)


async def until_idle(pool: IoPool[Request], handler: Handler) -> None:
    """Returns when the loop can take a turn of the first worker."""
    while not handler.threads or handler.threads[-1] != threading.get_ident():
        outcomes = Outcomes()
        submit_all(pool, [(0, outcomes.request("probe"))], inline_in=outcomes.loop)
        await outcomes.wait(1)


def test_an_idle_workers_turn_is_taken_by_the_loop(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        outcomes = Outcomes()
        await until_idle(pool, handlers[0])
        requests = [(0, outcomes.request(name)) for name in "ab"]
        submit_all(pool, requests, inline_in=outcomes.loop)
        assert outcomes.all == [("a", None), ("b", None)], "settled when submit returns"
        assert handlers[0].turns[-1] == ["a", "b"]

    asyncio.run(main())


def test_a_busy_workers_turn_is_not_taken(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        outcomes = Outcomes()
        handlers[0].hold()
        submit_all(pool, [(0, outcomes.request("first"))], inline_in=None)
        await asyncio.to_thread(handlers[0].entered.wait, 20)
        submit_all(pool, [(0, outcomes.request("second"))], inline_in=outcomes.loop)
        assert outcomes.all == []
        handlers[0].gate.set()
        await outcomes.wait(2)
        assert outcomes.all == [("first", None), ("second", None)]
        assert threading.get_ident() not in handlers[0].threads

    asyncio.run(main())


def test_what_is_queued_during_the_loops_turn_is_served_after_it(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        outcomes = Outcomes()
        await until_idle(pool, handlers[0])
        late = outcomes.request("late")

        def queue_meanwhile() -> None:
            assert handlers[0].entered.wait(20)
            submit_all(pool, [(0, late)], inline_in=None)
            handlers[0].gate.set()

        handlers[0].hold()
        other = threading.Thread(target=queue_meanwhile)
        other.start()
        submit_all(pool, [(0, outcomes.request("early"))], inline_in=outcomes.loop)
        await outcomes.wait(2)
        other.join()
        assert outcomes.all == [("early", None), ("late", None)]
        assert handlers[0].threads[-1] != threading.get_ident()

    asyncio.run(main())


def test_a_defect_in_the_loops_turn_fails_its_requests_only(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        outcomes = Outcomes()
        await until_idle(pool, handlers[0])
        handlers[0].failure = RuntimeError("a defect")
        submit_all(pool, [(0, outcomes.request("bad"))], inline_in=outcomes.loop)
        handlers[0].failure = None
        submit_all(pool, [(0, outcomes.request("good"))], inline_in=outcomes.loop)
        (_, error), good = outcomes.all
        assert isinstance(error, StorageFailed)
        assert good == ("good", None)

    asyncio.run(main())


def test_a_closed_pool_fails_what_has_room_and_gives_none(
    make_pool: Callable[..., IoPool[Request]],
) -> None:
    async def main() -> None:
        pool = make_pool()
        outcomes = Outcomes()
        late = outcomes.request("late")
        assert pool.lane(0).reserve(1)
        pool.close()
        pool.submit([(0, late)], outcomes.loop)
        await outcomes.wait(1)
        assert isinstance(outcomes.all[0][1], Closed)
        with pytest.raises(Closed):
            pool.lane(0).reserve(1)

    asyncio.run(main())


def test_a_tick_that_is_due_is_not_forgotten_for_the_loops_turns(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        outcomes = Outcomes()
        handler = handlers[0]
        handler.tick_after = 0.01
        submit_all(
            pool, [(0, outcomes.request("first"))], inline_in=None
        )  # Its tick sets the date.
        await outcomes.wait(1)
        handler.ticked.clear()
        deadline = outcomes.loop.time() + 60
        while not handler.ticked.is_set():
            assert outcomes.loop.time() < deadline
            more = Outcomes()
            submit_all(pool, [(0, more.request("more"))], inline_in=outcomes.loop)
            await more.wait(1)

    asyncio.run(main())


def test_room_is_reserved_and_given_back(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool(queue_requests=2)
        lane = pool.lane(0)
        outcomes = Outcomes()
        handlers[0].hold()
        submit_all(pool, [(0, outcomes.request("working"))], inline_in=None)
        await asyncio.to_thread(handlers[0].entered.wait, 20)
        submit_all(pool, [(0, outcomes.request(name)) for name in "ab"], inline_in=None)
        assert not lane.reserve(1)
        handlers[0].gate.set()
        await outcomes.wait(3)
        assert (lane.held_count, lane.held_bytes) == (0, 0)

    asyncio.run(main())


async def test_what_is_queued_at_its_deadline_is_refused(make_pool, handlers) -> None:
    """1. The worker is at work. 2. Two requests are queued, the deadline of one has passed when the
    worker gets to it. 3. Only the other is done."""
    pool = make_pool()
    outcomes = Outcomes()
    handlers[0].hold()
    submit_all(pool, [(0, outcomes.request("working"))], inline_in=None)
    await asyncio.to_thread(handlers[0].entered.wait, 20)
    late, other = outcomes.request("late"), outcomes.request("other")
    late.deadline_s = time.monotonic()
    other.deadline_s = time.monotonic() + 3_600
    submit_all(pool, [(0, late), (0, other)], inline_in=None)
    handlers[0].gate.set()
    await outcomes.wait(3)
    (refusal,) = [error for _, error in outcomes.all if error is not None]
    assert isinstance(refusal, AppendTimedOut)
    assert not refusal.is_unknown
    assert handlers[0].names() == ["working", "other"]


async def test_a_wait_for_room_ends_at_the_deadline(make_pool, handlers) -> None:
    pool = make_pool(queue_requests=1)
    outcomes = Outcomes()
    handlers[0].hold()
    submit_all(pool, [(0, outcomes.request("working"))], inline_in=None)
    await asyncio.to_thread(handlers[0].entered.wait, 20)
    submit_all(pool, [(0, outcomes.request("queued"))], inline_in=None)
    late = Request("late")
    late.deadline_s = time.monotonic() + 0.01
    with pytest.raises(AppendTimedOut):
        await submit(pool, late)
    thread, outcome = in_thread(lambda: run_blocking(submit(pool, late)))
    await asyncio.to_thread(thread.join)
    assert isinstance(outcome[0], AppendTimedOut)
    handlers[0].gate.set()
    await outcomes.wait(2)
    assert handlers[0].names() == ["working", "queued"]


async def test_a_queued_request_can_be_withdrawn_and_others_get_its_room(
    make_pool, handlers
) -> None:
    pool = make_pool(queue_requests=1)
    lane = pool.lane(0)
    outcomes = Outcomes()
    handlers[0].hold()
    working, queued = outcomes.request("working"), outcomes.request("queued")
    submit_all(pool, [(0, working)], inline_in=None)
    await asyncio.to_thread(handlers[0].entered.wait, 20)
    submit_all(pool, [(0, queued)], inline_in=None)
    waiting = asyncio.create_task(submit(pool, Request("waiting")))
    while not lane.room_waiters:
        await asyncio.to_thread(int)
    assert not lane.withdraw(working), "it is being done"
    assert lane.withdraw(queued)
    assert not lane.withdraw(queued)
    while lane.held_count == 0:
        await asyncio.to_thread(int)
    handlers[0].gate.set()
    assert await waiting == "waiting"
    assert handlers[0].names() == ["working", "waiting"]


def test_a_loop_appends_inline_while_the_worker_is_idle(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        lane = pool.lane(0)
        await until_idle(pool, handlers[0])
        before = pool.statistics()
        assert lane.may_append_inline()
        assert lane.reserve(7)
        lane.appended_inline(7, 0.001)
        after = pool.statistics()
        assert after.turn_count == before.turn_count + 1
        assert after.request_count == before.request_count + 1
        assert (lane.held_count, lane.held_bytes) == (0, 0)
        outcomes = Outcomes()
        handlers[0].hold()
        submit_all(pool, [(0, outcomes.request("first"))], inline_in=None)
        assert not lane.may_append_inline(), "the worker has something to do"
        await asyncio.to_thread(handlers[0].entered.wait, 20)
        assert not lane.may_append_inline(), "the worker is at it"
        handlers[0].gate.set()
        await outcomes.wait(1)

    asyncio.run(main())


def test_a_pool_is_busy_from_the_first_request_to_the_end_of_the_last(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        await until_idle(pool, handlers[0])
        assert not pool.is_busy
        outcomes = Outcomes()
        handlers[0].hold()
        submit_all(pool, [(0, outcomes.request("first"))], inline_in=None)
        assert pool.is_busy, "a request waits"
        await asyncio.to_thread(handlers[0].entered.wait, 20)
        assert pool.is_busy, "the worker is at it"
        handlers[0].gate.set()
        await outcomes.wait(1)
        await until_idle(pool, handlers[0])
        assert not pool.is_busy

    asyncio.run(main())


def test_after_a_slow_inline_append_the_worker_appends(
    make_pool: Callable[..., IoPool[Request]], handlers: list[Handler]
) -> None:
    async def main() -> None:
        pool = make_pool()
        lane = pool.lane(0)
        await until_idle(pool, handlers[0])
        assert lane.may_append_inline()
        assert lane.reserve(1)
        lane.appended_inline(1, 3_601)
        assert not lane.may_append_inline()

    asyncio.run(main())


def test_nothing_is_appended_inline_once_the_pool_is_closed(
    make_pool: Callable[..., IoPool[Request]],
) -> None:
    pool = make_pool()
    pool.close()
    assert not pool.lane(0).may_append_inline()


def test_a_parked_request_goes_on_when_the_lane_is_resumed() -> None:
    """1. A request is parked, and the worker serves others. 2. It can go on, and comes before what
    is queued then. 3. Closing waits for one that is still parked."""
    handler = Handler()
    pool: IoPool[Request] = IoPool(worker_count=1, handler=lambda _: handler)
    handler.parks = {"a", "b"}
    first, second = Request("a"), Request("b")
    tickets = {}

    def submit(request: Request) -> None:
        async def go() -> object:
            request.ticket = Ticket()
            await pool.wait_for_room(1, request)
            pool.submit([(1, request)])
            return await request.ticket

        thread = threading.Thread(target=lambda: tickets.update({request: run_blocking(go())}))
        thread.start()
        threads.append(thread)

    threads: list[threading.Thread] = []
    submit(first)
    submit(second)
    other = Request("c")
    submit(other)
    threads[2].join(60)
    assert tickets == {other: "c"}
    handler.parks = {"b"}
    pool.lane(1).resume()
    threads[0].join(60)
    assert tickets == {other: "c", first: "a"}
    closing = threading.Thread(target=pool.close)
    closing.start()
    handler.parks = set()
    pool.lane(1).resume()
    closing.join(60)
    threads[1].join(60)
    assert tickets == {other: "c", first: "a", second: "b"}
    assert handler.is_closed
