"""How much of the event loop's time a coroutine takes, without what it waits for."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Timed:
    """Measures coroutines one after the other; `spent_s` is their time together."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.spent_s = 0.0

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: T = await self._steps(coroutine)
        return result

    @types.coroutine
    def _steps(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        resume: Callable[[], Any] = lambda: coroutine.send(None)  # noqa: E731
        while True:
            started_s = self._clock()
            try:
                awaited = resume()
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                self.spent_s += self._clock() - started_s
            try:
                value = yield awaited
            except BaseException as error:  # Of what was awaited, or a cancellation.
                thrown = error
                resume = lambda: coroutine.throw(thrown)  # noqa: E731, B023
            else:
                resume = lambda: coroutine.send(value)  # noqa: E731, B023
