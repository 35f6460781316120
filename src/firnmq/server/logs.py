"""What becomes of a node's events: one line each on standard error, as text or as JSON."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import IO

import msgspec

from firnmq.config import LogConfig


class EventFormatter(logging.Formatter):
    """Writes events with their fields, and what libraries log as events of their own."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        event = getattr(record, "event", None)
        fields = dict(getattr(record, "fields", {}))
        if event is None:
            event, fields = "message", {"text": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = self.formatException(record.exc_info)
        component = record.name.removeprefix("firnmq.")
        stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self._as_json:
            document = {
                "time": stamp,
                "level": record.levelname.lower(),
                "component": component,
                "event": event,
                **{name: _plain(value) for name, value in fields.items()},
            }
            return msgspec.json.encode(document).decode()
        shown = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        return f"{stamp} {record.levelname.lower():<7} {component} {event}{shown}"


def configure_logs(config: LogConfig, stream: IO[str] | None = None) -> None:
    """Sends every log record of the process to one place."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(EventFormatter(as_json=config.json))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("firnmq").setLevel(config.level.upper())


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def _quoted(value: object) -> str:
    """A value on one line, in quotes where it could be mistaken for two."""
    text = str(value)
    if text and text.isprintable() and not any(each in text for each in ' "='):
        return text
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()
