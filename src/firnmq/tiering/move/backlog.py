"""Refuses appends to tiered topics while too many bytes wait for their upload."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from firnmq.errors import FirnError, TierBacklogFull
from firnmq.eventlog import EventLogger
from firnmq.tiering.move.ledger import TierLedger

_log = EventLogger("tiering")


class Refusing(Protocol):
    """The method of an engine that refuses appends."""

    def refuse_tiered(self, refusal: FirnError | None) -> None: ...


class Backlog:
    """Used by the thread that changes the ledger."""

    def __init__(
        self, ledger: TierLedger, engines: Iterable[Refusing], limit_bytes: int | None
    ) -> None:
        self._ledger = ledger
        self._engines = list(engines)
        self._limit_bytes = limit_bytes
        self.is_holding = False
        """Whether appends are refused; any thread may read it."""

    def judge(self) -> None:
        limit = self._limit_bytes
        if limit is None:
            return
        waiting = self._ledger.waiting_bytes()
        is_holding = waiting > limit
        if is_holding == self.is_holding:
            return
        self.is_holding = is_holding
        refusal = TierBacklogFull(waiting, limit) if is_holding else None
        for engine in self._engines:
            engine.refuse_tiered(refusal)
        event = "appends_held" if is_holding else "appends_released"
        (_log.error if is_holding else _log.info)(event, waiting_bytes=waiting, limit=limit)
