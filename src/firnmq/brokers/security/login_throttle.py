"""Failed logins make the next ones wait: guessing passwords takes years instead of days."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

_FIRST_DELAY_S: Final = 0.1
WAIT_MAX_S: Final = 5.0
_QUEUE: Final = 4
"""Logins of one pair that can wait at the same time where the delay is longest: a program with an
old password must not keep out others on its machine that have the new one."""
_FORGOTTEN_AFTER_S: Final = 15 * 60.0
_ENTRIES_MAX: Final = 10_000
"""Addresses and users that are remembered; with more, those that failed longest ago are not."""


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0
    next_s: float = 0.0
    """When the next password may be checked."""


class LoginThrottle:
    """Counts failures by the client's address and the user's name: a stranger elsewhere cannot keep
    a user out. Passwords of one pair are checked one after the other, after a delay that doubles
    with each failure. No I/O; times are those of any steady clock."""

    def __init__(self, wait_max_s: float = WAIT_MAX_S) -> None:
        self._wait_max_s = min(wait_max_s, WAIT_MAX_S)
        self._delay_max_s = self._wait_max_s / _QUEUE
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def reserve(self, address: str, user: str, now_s: float) -> float | None:
        """Seconds to wait before a password is checked; None if too many wait already."""
        known = self._failures.get((address, user))
        if known is None:
            return 0.0
        if now_s - known.last_s > _FORGOTTEN_AFTER_S:
            del self._failures[address, user]
            return 0.0
        wait_s = max(0.0, known.next_s - now_s)
        if wait_s > self._wait_max_s:
            return None
        known.next_s = now_s + wait_s + self._delay_s(known.count)
        return wait_s

    def failed(self, address: str, user: str, now_s: float) -> int:
        """How often it has failed by now."""
        known = self._failures.setdefault((address, user), _Failures())
        self._failures.move_to_end((address, user))
        known.count += 1
        known.last_s = now_s
        known.next_s = max(known.next_s, now_s + self._delay_s(known.count))
        if len(self._failures) > _ENTRIES_MAX:
            self._failures.popitem(last=False)
        return known.count

    def succeeded(self, address: str, user: str) -> None:
        self._failures.pop((address, user), None)

    def _delay_s(self, count: int) -> float:
        return min(_FIRST_DELAY_S * 2.0 ** min(count - 1, 30), self._delay_max_s)
