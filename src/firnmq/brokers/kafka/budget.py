"""How many bytes of requests all connections together may hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class ByteBudget:
    """Counts bytes in flight. Owned by the event loop; nothing blocks, those who must wait are
    called back in the order they came."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def take(self, size: int) -> None:
        """Counts bytes that are in memory already."""
        self.used_bytes += size

    def take_or_wait(self, owner: object, size: int, granted: Callable[[], None]) -> bool:
        """Whether the bytes may be taken now; if not, `granted` is called once they are."""
        if not self._waiting and self._has_room(size):
            self.used_bytes += size
            return True
        self._waiting[owner] = (size, granted)
        return False

    def stop_waiting(self, owner: object) -> None:
        self._waiting.pop(owner, None)

    def give_back(self, size: int) -> None:
        self.used_bytes -= size
        while self._waiting:
            owner, (wanted, granted) = next(iter(self._waiting.items()))
            if not self._has_room(wanted):
                return
            del self._waiting[owner]
            self.used_bytes += wanted
            granted()

    def _has_room(self, size: int) -> bool:
        # A frame larger than the whole budget gets in when it is alone, so that nobody starves.
        return self.used_bytes == 0 or self.used_bytes + size <= self._limit_bytes
