"""Cold reads let appends go first, and never wait for them for ever."""

from collections.abc import Iterator

import pytest

import firnmq.tiering.cold.throttle as throttle_module
from firnmq.tiering.cold.throttle import ColdThrottle, default_rate
from firnmq.tiering.rate_limit import BURST_S

HOUR_S = 3_600.0


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleep_count = 0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleep_count += 1
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(throttle_module, "time", clock)
    return clock


def test_without_appends_no_read_waits(clock: Clock) -> None:
    assert ColdThrottle().wait_for_appends(HOUR_S) == 0
    assert ColdThrottle(lambda: False).wait_for_appends(HOUR_S) == 0
    assert ColdThrottle(lambda: True).wait_for_appends(0) == 0, "no backoff is left"
    assert clock.sleep_count == 0


def test_an_append_goes_first_and_its_caller_too(clock: Clock) -> None:
    looks: Iterator[bool] = iter([True, True, True, False])
    ColdThrottle(lambda: next(looks)).wait_for_appends(HOUR_S)
    assert next(looks, None) is None
    assert clock.sleep_count == 3, "two while it went on, one for those who waited for it"


def test_appends_without_end_are_waited_for_a_while(clock: Clock) -> None:
    assert ColdThrottle(lambda: True).wait_for_appends(0.01) == clock.now_s
    assert 0.01 <= clock.now_s < 0.012


def test_scans_are_limited_beside_appends_and_not_otherwise(clock: Clock) -> None:
    """1. Nothing was ever appended. 2. Appends come. 3. The last one was a while ago."""
    appends = 0
    throttle = ColdThrottle(append_count=lambda: appends, bytes_per_s=1_000)
    assert [throttle.reserve(10_000) for _ in range(3)] == [0, 0, 0]

    appends = 1
    assert throttle.reserve(10_000) == 0, "what went before there were appends is not paid for"
    assert throttle.reserve(1) == pytest.approx(10 - BURST_S)
    clock.now_s += 0.9
    assert throttle.reserve(1) == pytest.approx(9.1 - BURST_S, abs=0.01)

    clock.now_s += 0.2
    assert throttle.reserve(10_000) == 0
    appends = 2
    assert throttle.reserve(1) > 7, "the debt of before is remembered"


def test_single_reads_count_but_only_a_little(clock: Clock) -> None:
    appends = 0
    throttle = ColdThrottle(append_count=lambda: appends, bytes_per_s=1_000)
    throttle.note(10**9)
    assert throttle.bytes_within(2) is None, "there is no limit yet"
    appends = 1
    assert throttle.bytes_within(2) == 2_000
    throttle.note(300)
    assert throttle.reserve(0) == pytest.approx(0.3 - BURST_S)
    for _ in range(100):
        throttle.note(300)
    assert throttle.reserve(0) == pytest.approx(0.5)
    throttle.reserve(5_000)
    throttle.note(300)
    assert throttle.reserve(0) == pytest.approx(5.5), "nor is anything forgiven for them"


def test_the_default_rate_is_by_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    system = throttle_module.os
    rates = []
    for processors in ({3}, {0, 7}, set(range(64))):
        monkeypatch.setattr(system, "sched_getaffinity", lambda _, found=processors: found)
        rates.append(default_rate())
    assert rates == [64_000_000, 128_000_000, 256_000_000]
    monkeypatch.delattr(system, "sched_getaffinity")
    monkeypatch.setattr(system, "cpu_count", lambda: 2)
    assert default_rate() == 128_000_000
