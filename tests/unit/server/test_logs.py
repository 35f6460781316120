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


@pytest.mark.parametrize("as_json", [False, True])
def test_no_text_of_a_client_breaks_a_line_or_moves_the_cursor(as_json: bool) -> None:
    user = "a\x1b[2J\n\x85\u2028\x9b2J\x7f\u202e\U000e0001z"
    log = logging.LogRecord("firnmq.security", logging.WARNING, "", 0, "", (), None)
    log.event, log.fields = "authentication_failed", {"user": user}
    line = EventFormatter(as_json=as_json).format(log)
    assert line.isprintable()
    shown = line if as_json else "{" + line[line.index("user=") :].replace("user=", '"user":') + "}"
    assert json.loads(shown)["user"] == user
