"""A throttle that holds everything back, and notes what."""

import threading

from firnmq.tiering.cold.throttle import ColdThrottle


class Paced(ColdThrottle):
    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s
        self.has_appends = True
        self.asked = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.noted_sizes: list[int] = []

    def reserve(self, count: int) -> float:
        self.sizes.append(count)
        self.asked.release()
        return self.wait_s

    def note(self, count: int) -> None:
        self.noted_sizes.append(count)

    def has_recent_appends(self) -> bool:
        return self.has_appends
