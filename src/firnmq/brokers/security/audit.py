"""The audit log: who changed what, and who was refused what, one line each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from firnmq.eventlog import EventLogger

CHANGES_PER_S: Final = 100
REFUSALS_PER_S: Final = 10
_BURST_S: Final = 10
"""Seconds' worth of lines that may come together."""
NAMES_SHOWN_MAX: Final = 20

_log = EventLogger("audit")


class _Rate:
    """Lets a line pass as long as there are few enough; counts the others."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left = self._left_max = per_s * _BURST_S
        self._last_s = clock()
        self._held_back = 0

    def take(self) -> int | None:
        """How many lines were held back since the last one; None if this one is held back."""
        now_s = self._clock()
        self._left = min(self._left_max, self._left + (now_s - self._last_s) * self._per_s)
        self._last_s = now_s
        if self._left < 1:
            self._held_back += 1
            return None
        self._left -= 1
        held_back, self._held_back = self._held_back, 0
        return held_back


class AuditLog:
    """Owned by the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._changes = _Rate(CHANGES_PER_S, clock)
        self._refusals = _Rate(REFUSALS_PER_S, clock)
        self.change_count = 0
        self.refusals: dict[tuple[str, str], int] = {}
        """How often, by what was refused: operation and type of resource."""
        self.suppressed_count = 0
        """Lines that were not written, because there were too many."""

    def changed(self, who: str, host: str, what: str, names: Sequence[str]) -> None:
        """`what`: the request; `names`: what it changed."""
        self.change_count += 1
        held_back = self._changes.take()
        if held_back is None:
            self.suppressed_count += 1
            return
        _log.info(
            "changed", who=who, host=host, what=what, **_shown(names), **_suppressed(held_back)
        )

    def refused(
        self, who: str, host: str, what: str, operation: str, kind: str, names: Sequence[str]
    ) -> None:
        """`kind`: the type of resource with the `names` that the operation was refused on."""
        self.refusals[operation, kind] = self.refusals.get((operation, kind), 0) + 1
        held_back = self._refusals.take()
        if held_back is None:
            self.suppressed_count += 1
            return
        _log.warning(
            "refused",
            who=who,
            host=host,
            what=what,
            operation=operation,
            resource=kind,
            **_shown(names),
            **_suppressed(held_back),
        )


def _shown(names: Sequence[str]) -> dict[str, object]:
    # What a client sent may hold anything; a line of the log must stay one line.
    some = ",".join(name[:255] for name in names[:NAMES_SHOWN_MAX])
    return {"count": len(names), "names": some if some.isprintable() else ascii(some)}


def _suppressed(count: int) -> dict[str, object]:
    return {"suppressed": count} if count else {}
