"""One line per event, whatever is in it."""

from __future__ import annotations

import json
import logging

import pytest

from firnmq.eventlog import EventLogger
from firnmq.server.logs import EventFormatter


@pytest.fixture
def record(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    caplog.set_level(logging.INFO, logger="firnmq")
    EventLogger("kafka").info(
        "connection_closed", peer="::1", reason='said "no"\nand left', count=3, none=None
    )
    return caplog.records[-1]


def test_text(record: logging.LogRecord) -> None:
    line = EventFormatter(as_json=False).format(record)
    assert "\n" not in line
    assert line.partition(" ")[2] == (
        r'info    kafka connection_closed peer=::1 reason="said \"no\"\nand left"'
        " count=3 none=None"
    )


def test_json(record: logging.LogRecord) -> None:
    line = EventFormatter(as_json=True).format(record)
    assert "\n" not in line
    document = json.loads(line)
    assert document.pop("time").endswith("Z")
    assert document == {
        "level": "info",
        "component": "kafka",
        "event": "connection_closed",
        "peer": "::1",
        "reason": 'said "no"\nand left',
        "count": 3,
        "none": None,
    }


def test_what_libraries_log_is_an_event_too() -> None:
    try:
        raise ValueError("broken \udcff")
    except ValueError as error:
        record = logging.LogRecord(
            "asyncio", logging.ERROR, "", 0, "it is %s", ("late",), (ValueError, error, None)
        )
    document = json.loads(EventFormatter(as_json=True).format(record))
    assert (document["event"], document["text"]) == ("message", "it is late")
    assert "ValueError" in document["traceback"]
    assert "\n" not in EventFormatter(as_json=False).format(record)
