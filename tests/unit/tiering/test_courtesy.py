"""Cold reads let appends go first, and never wait for them for ever."""

from collections.abc import Iterator

import pytest

import firnmq.tiering.courtesy as courtesy_module
from firnmq.tiering.courtesy import Courtesy

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
    monkeypatch.setattr(courtesy_module, "time", clock)
    return clock


def test_without_appends_nobody_waits(clock: Clock) -> None:
    assert Courtesy().give_way(HOUR_S) == 0
    assert Courtesy(lambda: False).give_way(HOUR_S) == 0
    assert Courtesy(lambda: True).give_way(0) == 0, "no patience is left"
    assert clock.sleep_count == 0


def test_an_append_goes_first_and_its_caller_too(clock: Clock) -> None:
    looks: Iterator[bool] = iter([True, True, True, False])
    Courtesy(lambda: next(looks)).give_way(HOUR_S)
    assert next(looks, None) is None
    assert clock.sleep_count == 3, "two while it went on, one for those who waited for it"


def test_appends_without_end_are_waited_for_a_while(clock: Clock) -> None:
    assert Courtesy(lambda: True).give_way(0.01) == clock.now_s
    assert 0.01 <= clock.now_s < 0.012
