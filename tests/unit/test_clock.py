"""How old stored times are when the wall clock is set back."""

import pytest

from firnmq.clock import SteadyClock
from firnmq.testing import FakeClock

HOUR_MS = 3_600_000


def test_a_time_in_the_future_counts_from_when_it_was_first_seen() -> None:
    clock = FakeClock()
    sealed_ms = clock.now_ms()
    clock.set_back(HOUR_MS)
    assert clock.age_ms(sealed_ms) == 0
    clock.advance(60_000)
    assert clock.age_ms(sealed_ms) == 60_000
    clock.advance(HOUR_MS)
    assert clock.age_ms(sealed_ms) == HOUR_MS + 60_000, "also once the clock has passed it"
    assert clock.age_ms(clock.now_ms() - 5) == 5


def test_a_clock_that_is_set_back_twice_begins_again() -> None:
    clock = FakeClock()
    sealed_ms = clock.now_ms()
    clock.set_back(10)
    assert clock.age_ms(sealed_ms) == 0
    clock.set_back(HOUR_MS)
    assert clock.age_ms(sealed_ms) == 0
    clock.advance(7)
    assert clock.age_ms(sealed_ms) == 7


def test_a_clock_that_is_right_again_makes_nothing_older() -> None:
    """Else retention would remove records of today."""
    clock = FakeClock()
    written_ms = clock.now_ms()
    clock.advance(3)
    clock.set_back(30 * 24 * HOUR_MS)
    assert clock.age_ms(written_ms) == 0
    clock.advance(60_000)
    clock.set_forward(30 * 24 * HOUR_MS)
    assert clock.age_ms(written_ms) == 60_003
    clock.advance(HOUR_MS)
    assert clock.age_ms(written_ms) == HOUR_MS + 60_003


def test_an_age_at_an_earlier_moment() -> None:
    clock = FakeClock()
    began_ms = clock.now_ms()
    clock.advance(100)
    assert clock.age_ms(began_ms - 3, began_ms) == 3
    assert clock.age_ms(began_ms + 50, began_ms) == 0, "later than that moment, not in the future"
    assert clock.age_ms(began_ms + 50) == 50


def test_times_in_the_future_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firnmq.clock.FUTURE_TIMES_MAX", 10)
    clock = FakeClock()
    times = [clock.now_ms() + 24 * HOUR_MS + number for number in range(15)]
    for minutes in range(30):
        ages_ms = [clock.age_ms(each) for each in times]
        assert ages_ms == [minutes * 60_000] * 10 + [0] * 5, "those in use age, whatever else comes"
        clock.advance(60_000)
    for minutes in range(9):  # The first ones belong to nothing any more.
        assert [clock.age_ms(each) for each in times[5:]] == [(30 + minutes) * 60_000] * 5 + [0] * 5
        clock.advance(60_000)
    for minutes in range(3):
        assert clock.age_ms(times[-1]) == minutes * 60_000
        clock.advance(60_000)


def test_a_steady_clock_does_not_go_back() -> None:
    wall = FakeClock()
    steady = SteadyClock(wall)
    before_ms = steady.now_ms()
    wall.set_back(HOUR_MS)
    assert steady.now_ms() == before_ms
    wall.advance(1_000)
    assert steady.now_ms() == before_ms + 1_000
    wall.advance(2 * HOUR_MS)
    assert steady.now_ms() == before_ms + 1_000 + 2 * HOUR_MS
