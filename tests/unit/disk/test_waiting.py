"""The same coroutine, driven by a thread and by an event loop."""

import asyncio
import gc
import os
import threading

import pytest

from firnmq.disk import Settlement, Ticket, call_blocking, run_blocking
from firnmq.disk.loop_calls import call_from_worker
from firnmq.disk.waiting import is_blocking
from firnmq.errors import TimedOut


async def answered(value: object) -> object:
    """Waits for a ticket that another thread settles."""
    ticket: Ticket[object] = Ticket()

    def settle() -> None:
        settlement = Settlement()
        if isinstance(value, Exception):
            settlement.fail(ticket, value)
        else:
            settlement.resolve(ticket, value)
        settlement.deliver()

    thread = threading.Thread(target=settle)
    thread.start()
    try:
        return await ticket
    finally:
        thread.join()


def test_a_thread_waits_for_its_ticket() -> None:
    assert run_blocking(answered(5)) == 5
    with pytest.raises(KeyError):
        run_blocking(answered(KeyError("k")))
    assert not is_blocking()


async def test_a_task_waits_for_its_ticket() -> None:
    assert await answered(5) == 5
    with pytest.raises(KeyError):
        await answered(KeyError("k"))


async def test_a_thread_of_a_running_loop_can_block_too() -> None:
    """As someone does who calls the synchronous API from a coroutine."""
    assert run_blocking(answered(5)) == 5
    assert not is_blocking()
    assert await answered(6) == 6


def test_driving_can_be_nested() -> None:
    async def outer() -> object:
        inner = run_blocking(answered(1))
        assert is_blocking()
        return inner, await answered(2)

    assert run_blocking(outer()) == (1, 2)


async def test_blocking_calls_run_in_place_or_in_a_thread() -> None:
    async def where() -> threading.Thread:
        return await call_blocking(None, threading.current_thread)

    assert run_blocking(where()) is threading.current_thread()
    assert await where() is not threading.current_thread()


def test_a_foreign_coroutine_is_refused() -> None:
    async def foreign() -> None:
        await asyncio.futures.Future(loop=loop)

    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(AssertionError):
            run_blocking(foreign())
    finally:
        loop.close()
    assert not is_blocking()


def test_a_wait_can_have_a_limit() -> None:
    async def hopeless() -> None:
        Ticket().wait(0.001)

    with pytest.raises(TimedOut):
        run_blocking(hopeless())


async def test_a_cancelled_waiter_and_a_closed_loop_are_passed_over() -> None:
    ticket: Ticket[int] = Ticket()

    async def wait() -> int:
        return await ticket

    task = asyncio.ensure_future(wait())
    await asyncio.wait([asyncio.ensure_future(answered(0))])
    task.cancel()
    settlement = Settlement()
    settlement.resolve(ticket, 1)
    settlement.deliver()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_ticket_of_a_loop_that_has_ended() -> None:
    async def make() -> Ticket[int]:
        return Ticket()

    ticket = asyncio.run(make())
    settlement = Settlement()
    settlement.resolve(ticket, 1)
    settlement.deliver()


def test_workers_settle_tickets_of_several_loops_in_order() -> None:
    seen: dict[int, list[int]] = {}

    def run(number: int) -> None:
        async def main() -> None:
            got = seen[number] = []

            async def take(ticket: Ticket[int]) -> None:
                got.append(await ticket)

            tickets: list[Ticket[int]] = [Ticket() for _ in range(200)]
            waiting = asyncio.gather(*map(take, tickets))

            def settle() -> None:
                for at in range(0, 200, 7):
                    settlement = Settlement()
                    for value in range(at, min(at + 7, 200)):
                        settlement.resolve(tickets[value], value)
                    settlement.deliver()

            await asyncio.to_thread(settle)
            await asyncio.wait_for(waiting, 20)

        asyncio.run(main())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {number: list(range(200)) for number in range(4)}


def test_a_loop_that_was_closed_leaves_no_descriptor_and_harms_no_worker() -> None:
    async def make() -> Ticket[int]:
        return Ticket()

    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    tickets = [asyncio.run(make()) for _ in range(3)]
    for ticket in tickets:
        settlement = Settlement()
        settlement.resolve(ticket, 1)
        settlement.deliver()
    del tickets, ticket, settlement
    before = count()
    for _ in range(20):
        asyncio.run(make())
    assert count() <= before + 2


def test_a_defect_in_one_call_does_not_keep_others_waiting() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        defects: list[object] = []
        loop.set_exception_handler(lambda _, context: defects.append(context["exception"]))
        ticket: Ticket[int] = Ticket()

        def fail(_: object) -> None:
            raise RuntimeError("a defect")

        settlement = Settlement()
        settlement.resolve(ticket, 7)
        call_from_worker(loop, fail, None)
        settlement.deliver()
        assert await asyncio.wait_for(ticket, 20) == 7
        assert [str(each) for each in defects] == ["a defect"]

    asyncio.run(main())
