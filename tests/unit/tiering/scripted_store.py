"""An object store in memory whose answers a test can hold back, spoil or refuse."""

import threading
from collections import deque
from itertools import pairwise

from firnmq.errors import ObjectNotFound, StoreUnavailable


class StoreDown(StoreUnavailable):
    """What the scripted store raises when it is told to."""

    def __init__(self, reason: str) -> None:
        super().__init__(ScriptedStore.url, reason)


class ScriptedStore:
    """Objects by key. Safe with threads."""

    url = "test://bucket"

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = objects or {}
        self.lock = threading.Lock()
        self.gets: list[tuple[str, int, int]] = []
        self.failures: deque[BaseException] = deque()
        """Each is raised by one get, before anything else."""
        self.is_open = threading.Event()
        """While it is clear, gets wait."""
        self.is_open.set()
        self.arrived = threading.Semaphore(0)
        """Released by every get as it comes in."""

    def get_range(self, key: str, start: int, size: int) -> bytes:
        with self.lock:
            self.gets.append((key, start, size))
            failure = self.failures.popleft() if self.failures else None
        self.arrived.release()
        assert self.is_open.wait(30), "the test never opened the store"
        if failure is not None:
            raise failure
        try:
            return self.objects[key][start : start + size]
        except KeyError:
            raise ObjectNotFound(self.url, key) from None

    def fetched(self, key: str) -> list[tuple[int, int]]:
        with self.lock:
            return sorted((start, start + size) for each, start, size in self.gets if each == key)

    def is_fetched_once(self, key: str) -> bool:
        """Whether no byte of an object was fetched twice."""
        ranges = self.fetched(key)
        return all(one[1] <= two[0] for one, two in pairwise(ranges))


class Counted:
    """A limiter that adds up, and makes all wait for the same time."""

    bytes_per_s: int | None = None

    def __init__(self, wait_s: float = 0.0) -> None:
        self.total = 0
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self.asked = threading.Semaphore(0)

    def reserve(self, count: int) -> float:
        with self._lock:
            self.total += count
        self.asked.release()
        return self._wait_s
