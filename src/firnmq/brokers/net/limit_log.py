"""Limits that clients reach: every time is counted, and a few times are logged."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from firnmq.eventlog import EventLogger

LOG_S = 10.0
"""Time between two log lines of one kind about one address."""
_REMEMBERED_MAX = 1_000
"""Kinds and addresses whose last line is remembered. Beyond it the oldest is forgotten, and its
next line comes too early."""


class LimitLog:
    """One line per address and kind in ten seconds, with the number of events since the last one.
    Owned by the event loop."""

    def __init__(
        self, component: str, count: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        """`component`: who logs; `count` counts one more event of a limit."""
        self._log = EventLogger(component)
        self._count = count
        self._clock = clock
        self._logged: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        """By kind and address: when the last line was, and how many events there were since."""

    def hit(self, limit: str, peer: str, *, event: str = "limit_reached", **fields: object) -> None:
        """Counts that a client reached a limit, and logs it."""
        self._count(limit)
        self.note(event, limit, peer, **fields)

    def note(self, event: str, kind: str, peer: str, **fields: object) -> None:
        """Logs an event, if the last line of its kind about this address is old enough."""
        now_s = self._clock()
        key = (kind, peer)
        logged_s, count = self._logged.get(key, (-LOG_S, 0))
        count += 1
        if now_s - logged_s < LOG_S:
            self._logged[key] = (logged_s, count)
            return
        self._logged[key] = (now_s, 0)
        self._logged.move_to_end(key)
        if len(self._logged) > _REMEMBERED_MAX:
            self._logged.popitem(last=False)
        self._log.warning(event, kind=kind, peer=peer, count=count, **fields)
