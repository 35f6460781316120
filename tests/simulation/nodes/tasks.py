"""Threads of which exactly one runs at a time, chosen by a seed, and a clock that they share.

The code under test has threads, locks and waits. `Primitives` stands in for the module `threading`,
so that each wait is a point at which the schedule may go on with any other thread. A schedule is
therefore a function of its seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

SWITCH_CHANCE = 0.1
"""Of giving another thread its turn where nothing needs to be waited for."""


class Killed(BaseException):
    """The process of the thread has ended. No part of the code under test may handle it."""


class Stuck(AssertionError):
    """Every thread waits for another one."""


class Process:
    """What ends together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.paused_until_ms = 0.0


class Task:
    """A thread and its turns."""

    def __init__(self, name: str, process: Process | None, body: Callable[[], object]) -> None:
        self.name = name
        self.process = process
        self.body = body
        self.due_ms: float | None = 0.0
        """When it may go on; None: when it is woken."""
        self.was_woken = False
        self.is_done = False
        self.turn = threading.Lock()
        self.turn.acquire()
        self.thread: threading.Thread | None = None


class Tasks:
    """The schedule. `step` is called between any two turns."""

    def __init__(self, rng: random.Random, step: Callable[[], None] = lambda: None) -> None:
        self.rng = rng
        self.now_ms = 0.0
        self.turns = 0
        self.failure: BaseException | None = None
        self._step = step
        self._tasks: list[Task] = []
        self._all: list[Task] = []
        self._timed: list[tuple[float, int, Callable[[], None]]] = []
        self._timed_count = 0
        self._main = Task("main", None, lambda: None)
        self._main.due_ms = None
        self.current = self._main
        self.is_ending = False

    # From outside -------------------------------------------------------------------------------

    def run(self, body: Callable[[], object]) -> None:
        """Returns when the body, a task of its own, has ended; raises what any task raised."""
        first = self.spawn("world", None, body)
        self._pass_turn()
        self._main.turn.acquire()
        self.is_ending = True
        for task in self._all:
            if task is not first and not task.is_done:
                self._end(task)
        if self.failure is not None:
            raise self.failure

    def _end(self, task: Task) -> None:
        """Has a task raise Killed at its next wait, until it ends."""
        task.process = _ENDED
        while not task.is_done:
            self.current = task
            task.turn.release()
            self._main.turn.acquire()
        assert task.thread is not None
        task.thread.join()

    # From tasks ---------------------------------------------------------------------------------

    def spawn(self, name: str, process: Process | None, body: Callable[[], object]) -> Task:
        task = Task(name, process, body)
        task.due_ms = self.now_ms
        task.thread = threading.Thread(target=self._run_task, args=(task,), daemon=True)
        self._tasks.append(task)
        self._all.append(task)
        task.thread.start()
        return task

    def later(self, delay_ms: float, call: Callable[[], None]) -> None:
        """Has something done that does not wait, between two turns."""
        self._timed_count += 1
        self._timed.append((self.now_ms + delay_ms, self._timed_count, call))

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Gives others their turns until the task is woken; False if its time was over first."""
        task = self.current
        self.check_alive()
        task.was_woken = False
        task.due_ms = None if timeout_ms is None else self.now_ms + max(timeout_ms, 0.0)
        self._switch(task)
        return task.was_woken

    def sleep(self, ms: float) -> None:
        task = self.current
        self.check_alive()
        task.due_ms = self.now_ms + ms
        self._switch(task)

    def may_switch(self) -> None:
        """A point at which another task may go on."""
        self.check_alive()
        if self.rng.random() < SWITCH_CHANCE:
            self.sleep(0.0)

    def wake(self, task: Task) -> None:
        task.was_woken = True
        if not task.is_done:
            task.due_ms = self.now_ms

    def check_alive(self) -> None:
        process = self.current.process
        if process is not None and process.is_dead:
            raise Killed

    # Turns --------------------------------------------------------------------------------------

    def _run_task(self, task: Task) -> None:
        task.turn.acquire()
        try:
            if not (task.process is not None and task.process.is_dead):
                task.body()
        except Killed:
            pass
        except BaseException as error:  # Told to who runs the schedule.
            if self.failure is None:
                self.failure = error
        task.is_done = True
        self.current = self._main  # It has no more turns.
        self._pass_turn()

    def _switch(self, task: Task) -> None:
        if self._pass_turn() is not task:
            task.turn.acquire()
        self.check_alive()

    def _pass_turn(self) -> Task:
        """Gives the turn to a task, perhaps the one that has it."""
        before = self.current
        chosen = self.current = self._main if self.is_ending else self._choose()
        if chosen is not before or chosen is self._main:
            chosen.turn.release()
        return chosen

    def _choose(self) -> Task:
        self.turns += 1
        world = self._all[0]
        if self.failure is None:
            try:
                self._step()
            except BaseException as error:
                self.failure = error
        if world.is_done or self.failure is not None:
            return self._main
        self._tasks = [each for each in self._tasks if not each.is_done]
        while True:
            try:
                self._call_timed()
            except BaseException as error:
                self.failure = error
                return self._main
            ready = [each for each in self._tasks if self._due(each) <= self.now_ms]
            if ready:
                chosen = ready[0] if len(ready) == 1 else self.rng.choice(ready)
                chosen.due_ms = None
                return chosen
            next_ms = min(
                min((self._due(each) for each in self._tasks), default=_NEVER),
                min((due_ms for due_ms, _, _ in self._timed), default=_NEVER),
            )
            if next_ms == _NEVER:
                waiting = ", ".join(each.name for each in self._tasks)
                self.failure = Stuck(f"at {self.now_ms:.0f} ms all wait: {waiting}")
                return self._main
            self.now_ms = max(next_ms, self.now_ms)

    def _due(self, task: Task) -> float:
        if task.process is not None and task.process.is_dead:
            return 0.0
        if task.due_ms is None:
            return _NEVER
        return max(task.due_ms, task.process.paused_until_ms if task.process is not None else 0.0)

    def _call_timed(self) -> None:
        while True:
            due = [each for each in self._timed if each[0] <= self.now_ms]
            if not due:
                return
            first = min(due)
            self._timed.remove(first)
            first[2]()


_NEVER = float("inf")
_ENDED = Process("ended")
_ENDED.is_dead = True


class Primitives:
    """What modules under test use of `threading`, `queue` and `time`."""

    local = threading.local

    def __init__(self, tasks: Tasks, process_of: Callable[[], Process | None]) -> None:
        self._tasks = tasks
        self._process_of = process_of

        class Event(SimEvent):
            def __init__(self) -> None:
                super().__init__(tasks)

        self.Event = Event

    def Lock(self) -> SimLock:  # noqa: N802
        return SimLock(self._tasks)

    def RLock(self) -> SimLock:  # noqa: N802
        return SimLock(self._tasks, is_reentrant=True)

    def Condition(self, lock: SimLock | None = None) -> SimCondition:  # noqa: N802
        return SimCondition(self._tasks, lock or self.RLock())

    def Thread(  # noqa: N802
        self, *, target: Callable[[], object], name: str, daemon: bool = True
    ) -> SimThread:
        return SimThread(self._tasks, self._process_of(), name, target)

    def SimpleQueue(self) -> SimQueue:  # noqa: N802
        return SimQueue(self._tasks)

    def current_thread(self) -> Task:
        return self._tasks.current

    def monotonic(self) -> float:
        return self._tasks.now_ms / 1000


class _Waiters:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: list[Task] = []

    def wait(self, timeout_ms: float | None) -> bool:
        task = self._tasks.current
        self._waiting.append(task)
        try:
            return self._tasks.wait(timeout_ms)
        finally:
            if task in self._waiting:
                self._waiting.remove(task)

    def wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._tasks.wake(task)


class SimLock:
    def __init__(self, tasks: Tasks, *, is_reentrant: bool = False) -> None:
        self._tasks = tasks
        self._is_reentrant = is_reentrant
        self._owner: Task | None = None
        self._depth = 0
        self._waiters = _Waiters(tasks)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = self._tasks.current
        if self._is_reentrant and self._owner is task:
            self._depth += 1
            return True
        end_ms = None if timeout < 0 else self._tasks.now_ms + timeout * 1000
        while self._depth:
            left_ms = None if end_ms is None else end_ms - self._tasks.now_ms
            if not blocking or (left_ms is not None and left_ms <= 0):
                return False
            self._waiters.wait(left_ms)
        self._owner, self._depth = task, 1
        return True

    def release(self) -> None:
        if not self._depth:
            self._tasks.check_alive()
            raise AssertionError("a lock is released that is not held")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._waiters.wake_all()

    def release_all(self) -> int:
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def regain(self, depth: int) -> None:
        while self._depth:
            self._waiters.wait(None)
        self._owner, self._depth = self._tasks.current, depth

    def __enter__(self) -> SimLock:
        self._tasks.may_switch()
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class SimCondition:
    def __init__(self, tasks: Tasks, lock: SimLock) -> None:
        self._tasks = tasks
        self._lock = lock
        self._waiters = _Waiters(tasks)

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        depth = self._lock.release_all()
        try:
            return self._waiters.wait(None if timeout is None else timeout * 1000)
        finally:
            self._lock.regain(depth)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> bool:
        end_ms = None if timeout is None else self._tasks.now_ms + timeout * 1000
        while not predicate():
            left_s = None if end_ms is None else (end_ms - self._tasks.now_ms) / 1000
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify_all(self) -> None:
        self._waiters.wake_all()


class SimEvent:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._is_set = False
        self._waiters = _Waiters(tasks)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.wake_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        end_ms = None if timeout is None else self._tasks.now_ms + timeout * 1000
        while not self._is_set:
            left_ms = None if end_ms is None else end_ms - self._tasks.now_ms
            if left_ms is not None and left_ms <= 0:
                return False
            self._waiters.wait(left_ms)
        return True


class SimQueue:
    def __init__(self, tasks: Tasks) -> None:
        self._items: list[Any] = []
        self._waiters = _Waiters(tasks)

    def put(self, item: object) -> None:
        self._items.append(item)
        self._waiters.wake_all()

    def get(self) -> Any:
        while not self._items:
            self._waiters.wait(None)
        return self._items.pop(0)


class SimThread:
    def __init__(
        self, tasks: Tasks, process: Process | None, name: str, target: Callable[[], object]
    ) -> None:
        self._tasks = tasks
        self._process = process
        self._name = name
        self._target = target
        self._ended = SimEvent(tasks)

    def start(self) -> None:
        def body() -> None:
            try:
                self._target()
            finally:
                self._ended.set()

        self._tasks.spawn(self._name, self._process, body)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)
