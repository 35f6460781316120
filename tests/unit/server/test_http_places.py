"""Places for slow work: addresses take turns, and none has them all."""

from __future__ import annotations

import asyncio

from firnmq.server.admin.http.places import SharedPlaces


class Work:
    """Requests that hold a place until they are told to end."""

    def __init__(self, count: int) -> None:
        self.places = SharedPlaces(count)
        self.under_way: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, name: str, address: str) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.ensure_future(self._work(name, address))

    async def _work(self, name: str, address: str) -> None:
        async with self.places.place(address):
            self.under_way.append(name)
            await self._ends[name].wait()
            self.under_way.remove(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await self.settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await self.settle()

    async def settle(self) -> None:
        """Gives the event loop as many turns as the requests need to go on."""
        loop = asyncio.get_running_loop()
        for _ in range(5):
            turn = loop.create_future()
            loop.call_soon(turn.set_result, None)
            await turn


def test_one_address_has_half_of_the_places_and_another_finds_one_free() -> None:
    async def main() -> None:
        work = Work(4)
        for number in range(50):
            work.begin(f"slow {number}", "a")
        await work.settle()
        assert work.under_way == ["slow 0", "slow 1"]
        work.begin("other", "b")
        await work.settle()
        assert work.under_way == ["slow 0", "slow 1", "other"]

    asyncio.run(main())


def test_addresses_that_wait_take_turns() -> None:
    async def main() -> None:
        work = Work(1)
        for number in range(5):
            work.begin(f"a{number}", "a")
        work.begin("b0", "b")
        work.begin("c0", "c")
        order = []
        await work.settle()
        while work.under_way:
            (name,) = work.under_way
            order.append(name)
            await work.end(name)
        assert order == ["a0", "a1", "b0", "c0", "a2", "a3", "a4"]

    asyncio.run(main())


def test_a_request_that_is_cancelled_leaves_no_place_taken() -> None:
    async def main() -> None:
        work = Work(2)
        for name in ("a0", "a1", "a2"):
            work.begin(name, "a")
        await work.settle()
        await work.cancel("a1")  # Waits.
        await work.cancel("a0")  # Has a place.
        assert work.under_way[-1] == "a2"
        await work.end("a2")
        work.begin("b0", "b")
        work.begin("c0", "c")
        await work.settle()
        assert work.under_way[-2:] == ["b0", "c0"]

    asyncio.run(main())


def test_a_place_given_to_a_request_that_is_cancelled_goes_to_the_next() -> None:
    async def main() -> None:
        work = Work(1)
        for name, address in (("a0", "a"), ("b0", "b"), ("c0", "c")):
            work.begin(name, address)
        await work.settle()
        # The place is granted, and its request is cancelled before it runs again.
        work._ends["a0"].set()
        await work._tasks["a0"]
        await work.cancel("b0")
        assert "c0" in work.under_way

    asyncio.run(main())
