"""How many bytes of requests all connections together may hold.

A large frame is counted in steps as its bytes come, so that a length that is merely claimed keeps
nobody from anything. Frames that have begun could then hold all there is and wait for each other
for ever; so the first of them that does not fit may go beyond the limit until it is whole. One at a
time does, and only from within the limit: all together never hold more than one frame beyond it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

STEP_BYTES_MIN = 64 * 1024
"""What a large frame is given at first when half of everything is taken."""
STEP_BYTES_MAX = 1024 * 1024
"""What it is given otherwise: most frames fit and are never copied into a larger buffer."""

_Line = OrderedDict[object, tuple[int, Callable[[], None]]]


class ByteBudget:
    """Counts bytes in flight. Owned by the event loop; nothing blocks, those who must wait are
    called back in the order they came, those whose frames have begun before all others."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: _Line = OrderedDict()
        self._growing: _Line = OrderedDict()
        self._favoured: object | None = None
        """Whose frame may go beyond the limit."""
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    @property
    def has_plenty(self) -> bool:
        return self.used_bytes < self._limit_bytes // 2

    @property
    def waiting_count(self) -> int:
        return len(self._waiting) + len(self._growing)

    def take(self, size: int) -> None:
        """Counts bytes that are in memory already."""
        self.used_bytes += size

    def take_or_wait(self, owner: object, size: int, granted: Callable[[], None]) -> bool:
        """Whether the bytes may be taken now; if not, `granted` is called once they are."""
        if not self.waiting_count and self._has_room(size):
            self.used_bytes += size
            return True
        self._waiting[owner] = (size, granted)
        return False

    def grow_or_wait(self, owner: object, size: int, granted: Callable[[], None]) -> bool:
        """The same for one that holds a part and cannot give it back before it has the rest."""
        is_next = owner is self._favoured or not self._growing
        if is_next and (self._has_room(size) or self._favours(owner)):
            self.used_bytes += size
            return True
        self._growing[owner] = (size, granted)
        return False

    def leave(self, owner: object) -> None:
        """The owner wants no more: it has everything, or has gone away."""
        self._waiting.pop(owner, None)
        self._growing.pop(owner, None)
        if self._favoured is owner:
            self._favoured = None
        self._serve()

    def give_back(self, size: int) -> None:
        self.used_bytes -= size
        if self._growing or self._waiting:
            self._serve()

    def _serve(self) -> None:
        while self._growing:
            owner, (size, _) = next(iter(self._growing.items()))
            if not (self._has_room(size) or self._favours(owner)):
                return
            self._grant(self._growing)
        while self._waiting and not self._growing:
            owner, (size, _) = next(iter(self._waiting.items()))
            if not self._has_room(size):
                return
            self._grant(self._waiting)

    def _grant(self, line: _Line) -> None:
        _, (size, granted) = line.popitem(last=False)
        self.used_bytes += size
        granted()

    def _has_room(self, size: int) -> bool:
        # What is larger than the whole budget gets in when it is alone, so that nobody starves.
        return self.used_bytes == 0 or self.used_bytes + size <= self._limit_bytes

    def _favours(self, owner: object) -> bool:
        if self._favoured is None and self.used_bytes <= self._limit_bytes:
            self._favoured = owner
        return self._favoured is owner


class FrameRoom:
    """Room for one large frame: a first step, then twice as much whenever it is full."""

    __slots__ = ("_budget", "_length", "size_bytes")

    def __init__(self, budget: ByteBudget, length: int) -> None:
        self._budget = budget
        self._length = length
        self.size_bytes = 0
        """What is counted so far: as much as may be allocated."""

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self._length

    def take_step(self, granted: Callable[[], None], received: int = 0) -> bool:
        """Whether there is room for more bytes now; if not, `granted` is called once there is.

        The first step has room for what was received already, and for more.
        """
        assert not self.is_whole
        if self.size_bytes:
            step = min(self.size_bytes, self._length - self.size_bytes)
            take = self._budget.grow_or_wait
        else:
            step = STEP_BYTES_MAX if self._budget.has_plenty else STEP_BYTES_MIN
            step = min(max(step, received + STEP_BYTES_MIN), self._length)
            take = self._budget.take_or_wait

        def note() -> None:
            self.size_bytes += step
            granted()

        if not take(self, step, note):
            return False
        self.size_bytes += step
        return True

    def end(self) -> None:
        """The frame is whole; whoever answers it gives its bytes back."""
        assert self.is_whole
        self._budget.leave(self)

    def give_back(self) -> None:
        """The rest of the frame will not come."""
        self._budget.leave(self)
        size, self.size_bytes = self.size_bytes, 0
        self._budget.give_back(size)
