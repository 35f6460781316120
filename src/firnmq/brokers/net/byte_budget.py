"""How many bytes of requests all connections together may hold.

A large frame is counted in steps as its bytes come, so that a length that is only announced takes
no memory from other clients. Steps that do not fit wait in two lines. A step up to
`MODERATE_BYTES` of its frame waits in the first line; a step beyond that waits in the second line,
which is served only while the first is empty. So requests of moderate size never wait for large
ones to grow. In each line the client goes first that holds least.

Frames that have begun could hold everything and wait for each other for ever. Therefore the first
of them that does not fit may go beyond the limit until it is whole. One at a time does, and only
from within the limit: all together never hold more than one frame beyond it. What to do about
clients that hold memory and send nothing is decided in `memory_pressure.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

STEP_BYTES_MIN = 64 * 1024
"""What a large frame is given at first when half of everything is taken."""
MODERATE_BYTES = 1024 * 1024
"""Up to this size, a frame that has begun needs one more step. It is also the first step while
there is plenty: most frames fit and are never copied into a larger buffer."""


@dataclass(slots=True, eq=False)
class _Step:
    """More bytes for one frame."""

    owner: object
    share: ByteShare | None
    """Of the frame's client, in the budget of all clients."""
    size: int
    granted: Callable[[], None]
    is_growth: bool
    """Whether the frame holds bytes already, which it cannot give back before it is whole."""


class _Line:
    """Steps that wait. The client that holds least goes first, and its steps go in the order they
    came."""

    def __init__(self) -> None:
        self._clients: dict[ByteShare | None, OrderedDict[object, _Step]] = {}
        self._steps: OrderedDict[object, _Step] = OrderedDict()
        self._growing: OrderedDict[object, _Step] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: _Step) -> None:
        self._clients.setdefault(step.share, OrderedDict())[step.owner] = step
        self._steps[step.owner] = step
        if step.is_growth:
            self._growing[step.owner] = step

    def head(self) -> _Step | None:
        """The step that is next."""
        if not self._clients:
            return None
        share = min(self._clients, key=_used_bytes) if len(self._clients) > 1 else None
        steps = self._clients[share] if share else next(iter(self._clients.values()))
        return next(iter(steps.values()))

    def first_growing(self) -> _Step | None:
        """The step that has waited longest of those whose frames hold bytes."""
        return next(iter(self._growing.values()), None)

    def remove(self, owner: object) -> None:
        step = self._steps.pop(owner, None)
        if step is None:
            return
        self._growing.pop(owner, None)
        steps = self._clients[step.share]
        del steps[owner]
        if not steps:
            del self._clients[step.share]


def _used_bytes(share: ByteShare | None) -> int:
    return 0 if share is None else share.used_bytes


class ByteBudget:
    """Counts bytes in flight. Owned by the event loop; nothing blocks, and a step that must wait is
    granted by a call."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._moderate = _Line()
        self._large = _Line()
        self._favoured: object | None = None
        """Whose frame may go beyond the limit."""
        self._is_serving = False
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    @property
    def has_plenty(self) -> bool:
        return self.used_bytes < self._limit_bytes // 2

    @property
    def waiting_count(self) -> int:
        return len(self._moderate) + len(self._large)

    @property
    def next_owner(self) -> object | None:
        """Whose step is next; None if nothing waits."""
        step = self._moderate.head() or self._large.head()
        return None if step is None else step.owner

    @property
    def missing_bytes(self) -> int:
        """What must be given back before the next step fits."""
        step = self._moderate.head() or self._large.head()
        return 0 if step is None else self.used_bytes + step.size - self._limit_bytes

    def may_exceed(self, owner: object) -> bool:
        """Whether this is the one frame that may go beyond the limit."""
        return owner is self._favoured

    def take(self, size: int) -> None:
        """Counts bytes that are in memory already."""
        self.used_bytes += size

    def take_or_wait(
        self, owner: object, size: int, granted: Callable[[], None], share: ByteShare | None = None
    ) -> bool:
        """Whether a frame's first bytes may be taken; if not, `granted` is called once they are."""
        step = _Step(owner, share, size, granted, is_growth=False)
        return self._ask(self._moderate, step)

    def grow_or_wait(
        self,
        owner: object,
        size: int,
        granted: Callable[[], None],
        share: ByteShare | None = None,
        *,
        is_large: bool = False,
    ) -> bool:
        """The same for a frame that holds a part. `is_large`: it grows beyond moderate size."""
        step = _Step(owner, share, size, granted, is_growth=True)
        return self._ask(self._large if is_large else self._moderate, step)

    def leave(self, owner: object) -> None:
        """The owner wants no more: it has everything, or has gone away."""
        self._moderate.remove(owner)
        self._large.remove(owner)
        if self._favoured is owner:
            self._favoured = None
        self._serve()

    def give_back(self, size: int) -> None:
        self.used_bytes -= size
        if self._moderate or self._large:
            self._serve()

    def _ask(self, line: _Line, step: _Step) -> bool:
        if step.owner is self._favoured:
            self.used_bytes += step.size
            return True
        line.add(step)
        return self._serve(step)

    def _serve(self, asking: _Step | None = None) -> bool:
        """Grants every step that fits, in order. Returns whether `asking` was granted; it is not
        called. What is asked for while a step is called is granted by the loop that calls it."""
        if self._is_serving:
            return False
        was_granted = False
        self._is_serving = True
        try:
            while (granted := self._next_granted()) is not None:
                self.used_bytes += granted.size
                if granted is asking:
                    was_granted = True
                else:
                    granted.granted()
        finally:
            self._is_serving = False
        return was_granted

    def _next_granted(self) -> _Step | None:
        line = self._moderate if self._moderate else self._large
        step = line.head()
        if step is None:
            return None
        if not self._has_room(step.size):
            if self._favoured is not None or self.used_bytes > self._limit_bytes:
                return None
            step = self._moderate.first_growing()
            line = self._moderate if step is not None else self._large
            step = step or self._large.head()
            if step is None:
                return None
            self._favoured = step.owner
        line.remove(step.owner)
        return step

    def _has_room(self, size: int) -> bool:
        # A step larger than the whole budget is granted when nothing else is held.
        return self.used_bytes == 0 or self.used_bytes + size <= self._limit_bytes


class ByteShare:
    """What one client may hold of the budget: all connections of an address and a user together.

    A frame waits for room in its share first, then for room in the whole budget. The one frame that
    may go beyond the whole budget does not wait for its share: another frame of the share may be
    waiting for this one to end.
    """

    def __init__(self, whole: ByteBudget, limit_bytes: int) -> None:
        self._whole = whole
        self._own = ByteBudget(limit_bytes)
        self._passing: dict[object, int] = {}
        """Bytes of steps that the share has granted and that wait for the whole budget."""
        self.connection_count = 0

    @property
    def used_bytes(self) -> int:
        return self._own.used_bytes

    @property
    def is_full(self) -> bool:
        return self._own.is_full or self._whole.is_full

    @property
    def has_plenty(self) -> bool:
        return self._own.has_plenty and self._whole.has_plenty

    @property
    def waiting_count(self) -> int:
        return self._own.waiting_count + self._whole.waiting_count

    @property
    def next_owner(self) -> object | None:
        """Whose step is next of those that wait for room in this share."""
        return self._own.next_owner

    @property
    def missing_bytes(self) -> int:
        """What the share must give back before its next step fits."""
        return self._own.missing_bytes

    def take(self, size: int) -> None:
        self._own.used_bytes += size
        self._whole.used_bytes += size

    def take_or_wait(self, owner: object, size: int, granted: Callable[[], None]) -> bool:
        def ask_whole(done: Callable[[], None]) -> bool:
            return self._whole.take_or_wait(owner, size, done, self)

        passed = self._passed(owner, size, granted, ask_whole)
        if not self._own.take_or_wait(owner, size, passed):
            return False
        return self._pass(owner, size, granted, ask_whole)

    def grow_or_wait(
        self, owner: object, size: int, granted: Callable[[], None], *, is_large: bool = False
    ) -> bool:
        def ask_whole(done: Callable[[], None]) -> bool:
            return self._whole.grow_or_wait(owner, size, done, self, is_large=is_large)

        if self._whole.may_exceed(owner):
            self._own.take(size)
            return ask_whole(granted)
        passed = self._passed(owner, size, granted, ask_whole)
        if not self._own.grow_or_wait(owner, size, passed, is_large=is_large):
            return False
        return self._pass(owner, size, granted, ask_whole)

    def leave(self, owner: object) -> None:
        size = self._passing.pop(owner, 0)
        self._whole.leave(owner)
        self._own.leave(owner)
        if size:
            self._own.give_back(size)

    def give_back(self, size: int) -> None:
        self._whole.give_back(size)
        self._own.give_back(size)

    def _passed(
        self,
        owner: object,
        size: int,
        granted: Callable[[], None],
        ask_whole: Callable[[Callable[[], None]], bool],
    ) -> Callable[[], None]:
        def passed() -> None:
            if self._pass(owner, size, granted, ask_whole):
                granted()

        return passed

    def _pass(
        self,
        owner: object,
        size: int,
        granted: Callable[[], None],
        ask_whole: Callable[[Callable[[], None]], bool],
    ) -> bool:
        def done() -> None:
            del self._passing[owner]
            granted()

        if ask_whole(done):
            return True
        self._passing[owner] = size
        return False


class FrameRoom:
    """Room for one large frame: a first step, moderate size, then twice as much when it is full."""

    __slots__ = ("_length", "share", "size_bytes", "waits_since_s")

    def __init__(self, share: ByteBudget | ByteShare, length: int) -> None:
        self.share = share
        """Where the bytes are counted."""
        self._length = length
        self.size_bytes = 0
        """What is counted so far: as much as may be allocated."""
        self.waits_since_s = 0.0
        """When the latest step was asked for."""

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self._length

    def take_step(self, granted: Callable[[], None], received: int = 0, now_s: float = 0.0) -> bool:
        """Whether there is room for more bytes now; if not, `granted` is called once there is.

        The first step has room for what was received already, and for more.
        """
        assert not self.is_whole
        self.waits_since_s = now_s

        def note() -> None:
            self.size_bytes += step
            granted()

        if self.size_bytes:
            size = min(max(2 * self.size_bytes, MODERATE_BYTES), self._length)
            step = size - self.size_bytes
            is_large = size > MODERATE_BYTES
            is_granted = self.share.grow_or_wait(self, step, note, is_large=is_large)
        else:
            step = MODERATE_BYTES if self.share.has_plenty else STEP_BYTES_MIN
            step = min(max(step, received + STEP_BYTES_MIN), self._length)
            is_granted = self.share.take_or_wait(self, step, note)
        if is_granted:
            self.size_bytes += step
        return is_granted

    def end(self) -> None:
        """The frame is whole; its bytes are given back when it is answered."""
        assert self.is_whole
        self.share.leave(self)

    def give_back(self) -> None:
        """The rest of the frame will not come."""
        self.share.leave(self)
        size, self.size_bytes = self.size_bytes, 0
        self.share.give_back(size)
