"""Writes a node's events to standard error, one line each, as text or as JSON."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import IO

import msgspec

from firnmq.config import LogConfig


class EventFormatter(logging.Formatter):
    """Formats events with their fields, and log records of libraries as events."""

    def __init__(self, *, as_json: bool, process: int | None = None) -> None:
        """`process`: the number that every event carries, if several processes write to one
        place."""
        super().__init__()
        self._as_json = as_json
        self._more = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        event = getattr(record, "event", None)
        fields = dict(getattr(record, "fields", {}))
        if event is None:
            event, fields = "message", {"text": record.getMessage()}
        fields |= self._more
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
            return _printable(msgspec.json.encode(document).decode())
        shown = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        return _printable(f"{stamp} {record.levelname.lower():<7} {component} {event}{shown}")


def configure_logs(
    config: LogConfig, stream: IO[str] | None = None, *, process: int | None = None
) -> None:
    """Sends every log record of the process to one place."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(EventFormatter(as_json=config.json, process=process))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("firnmq").setLevel(config.level.upper())


def _printable(line: str) -> str:
    """The line with JSON escapes for characters that JSON allows and that terminals or line readers
    interpret: U+0085, U+009B, U+2028, changes of direction. Clients choose some of the text."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else _escaped(each) for each in line)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def _quoted(value: object) -> str:
    """A value on one line, quoted if it could be mistaken for several."""
    text = str(value)
    if text and text.isprintable() and not any(each in text for each in ' "='):
        return text
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()
