"""The audit log keeps to a rate, and says how much it left out."""

import logging

import pytest

from firnmq.brokers.security.audit import REFUSALS_PER_S, AuditLog


def test_lines_are_bounded_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    audit = AuditLog(lambda: now_s[0])
    caplog.set_level(logging.INFO, "firnmq.audit")
    for _ in range(1_000):
        audit.refused("User:ann", "::1", "fetch", "read", "topic", ["orders"])
    burst = REFUSALS_PER_S * 10
    assert len(caplog.records) == burst
    assert audit.suppressed_count == 1_000 - burst
    assert audit.refusals == {("read", "topic"): 1_000}
    # A change is logged however many refusals there were.
    audit.changed("User:root", "::1", "create_topics", ["a\nb", "c"])
    assert caplog.records[-1].fields == {
        "who": "User:root",
        "host": "::1",
        "what": "create_topics",
        "count": 2,
        "names": "'a\\nb,c'",
    }
    now_s[0] = 1.0
    audit.refused("User:ann", "::1", "fetch", "read", "topic", ["orders"])
    assert caplog.records[-1].fields["suppressed"] == 1_000 - burst
    assert audit.change_count == 1
