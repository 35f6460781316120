"""Logs are events with fields, through the standard library's logging.

An embedding program finds them under the logger `firnmq` and configures its handlers; by default,
Python prints warnings and errors to stderr. `event` and `fields` are attributes of each log record,
for handlers that want them apart from the text.
"""

from __future__ import annotations

import logging


class EventLogger:
    """Writes one component's events. `error` means that an operator must act."""

    __slots__ = ("_logger",)

    def __init__(self, component: str) -> None:
        self._logger = logging.getLogger(f"firnmq.{component}")

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            text = " ".join([event, *(f"{name}={value}" for name, value in fields.items())])
            self._logger.log(level, "%s", text, extra={"event": event, "fields": fields})
