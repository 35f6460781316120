"""`firn tier cost` for a topic of a data directory."""

from __future__ import annotations

import pytest

DAY_MS = 24 * 3600 * 1000


def test_a_topic_says_how_long_it_is_kept(ok, documents) -> None:
    options = (f"retention.ms={90 * DAY_MS}", f"local.retention.ms={3 * DAY_MS}")
    ok("topic", "create", "t", *(part for each in options for part in ("--option", each)))
    (found,) = documents("tier", "cost", "t", "--per-day", "10GB")
    assert found["topic"] == "t"
    assert found["workload"]["retention_days"] == 90
    assert found["workload"]["local_days"] == 3
    assert found["month"]["history_bytes"] == 900e9
    (other,) = documents("tier", "cost", "t", "--per-day", "10GB", "--retention-days", "30")
    assert other["month"]["history_bytes"] == 300e9


def test_a_topic_without_limits_takes_the_defaults(ok, documents) -> None:
    ok("topic", "create", "t")
    (found,) = documents("tier", "cost", "t", "--per-day", "1GB")
    assert found["workload"]["retention_days"] == 365
    assert found["workload"]["local_days"] == 7


def test_what_is_assumed_is_told(ok, documents) -> None:
    ok("topic", "create", "t", "--option", f"local.retention.ms={3 * DAY_MS}")
    text = ok("tier", "cost", "t", "--per-day", "1GB")
    assert "bytes per day  1 GB (--per-day)" in text
    assert "365 days (ASSUMED, t has no retention.ms; --retention-days says otherwise)" in text
    assert "local days     3 days (local.retention.ms of t)" in text
    assert "3 local copies, disks filled to 70%, segments of 1.074 GB, 10% of" in text
    assert "GB-month 0.08 locally, 0.023 in the store" in text
    (found,) = documents("tier", "cost", "t", "--per-day", "1GB")
    assert found["sources"] == {
        "bytes_per_day": "option",
        "retention_days": "default",
        "local_days": "topic",
    }
    assert ok("tier", "cost").count("ASSUMED") == 3


def test_a_young_topic_has_no_rate_yet(ok, firn) -> None:
    ok("topic", "create", "t")
    result = firn("tier", "cost", "t")
    assert result.exit_code == 2
    assert "--per-day" in result.output


def test_a_topic_that_is_not_there(ok, firn) -> None:
    ok("topic", "create", "t")
    assert firn("tier", "cost", "other").exit_code == 1


@pytest.mark.parametrize("arguments", [("--local-fill", "0"), ("--replicas", "0")])
def test_invalid_inputs_are_refused(firn, arguments: tuple[str, str]) -> None:
    result = firn("tier", "cost", *arguments)
    assert result.exit_code == 2
    assert "must be" in result.output
