"""The token bucket, by a clock that the tests move."""

import threading

import pytest

from firnmq.errors import InvalidArgument
from firnmq.tiering.rate_limit import BURST_S, RateLimiter


class Time:
    """A monotonic clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        with self._lock:
            self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def limiter(time: Time, bytes_per_s: int | None) -> RateLimiter:
    return RateLimiter(bytes_per_s, monotonic=time.monotonic, wait=time.sleep)


def test_without_a_rate_no_request_waits(time: Time) -> None:
    unlimited = limiter(time, None)
    for _ in range(1_000):
        unlimited.take(1 << 40)
    assert time.now == 1_000.0


@pytest.mark.parametrize("piece", [1, 999, 4 << 20])
def test_the_rate_holds_whatever_the_pieces(time: Time, piece: int) -> None:
    limited = limiter(time, 1_000_000)
    count = max(20, 5_000_000 // piece) if piece > 1 else 500_000
    for _ in range(count):
        limited.take(piece)
    limited.take(0)
    took = time.now - 1_000.0
    assert took == pytest.approx((count * piece) / 1_000_000 - BURST_S, rel=0.01)


def test_a_pause_saves_up_one_burst_and_no_more(time: Time) -> None:
    limited = limiter(time, 1_000)
    limited.take(1_000)
    time.now += 3_600
    before = time.now
    limited.take(int(1_000 * BURST_S))
    assert time.now == before
    limited.take(1_000)
    assert time.now == before
    limited.take(1)
    assert time.now == pytest.approx(before + 1)


def test_a_large_request_does_not_wait_for_itself_but_others_do(time: Time) -> None:
    limited = limiter(time, 1_000)
    assert limited.reserve(10_000) == 0
    assert limited.reserve(1) == pytest.approx(10 - BURST_S)
    assert limited.reserve(1) == pytest.approx(10 - BURST_S, abs=0.01)


def test_threads_share_the_rate(time: Time) -> None:
    limited = limiter(time, 1_000)
    booked: list[float] = []

    def work() -> None:
        for _ in range(100):
            booked.append(limited.reserve(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(booked) == pytest.approx(4_000 / 1_000 - BURST_S, abs=0.02)
    assert len({round(wait, 6) for wait in booked}) >= 380


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_of_nothing_is_refused(rate: int) -> None:
    with pytest.raises(InvalidArgument):
        RateLimiter(rate)


def test_less_than_nothing_cannot_be_taken(time: Time) -> None:
    with pytest.raises(InvalidArgument):
        limiter(time, 10).take(-1)


def test_what_goes_at_once_is_counted_up_to_a_limit(time: Time) -> None:
    limited = limiter(time, 1_000)
    limited.note(500, debt_s_max=1)
    assert limited.reserve(0) == pytest.approx(0.5 - BURST_S)
    limited.note(10**9, debt_s_max=1)
    assert limited.reserve(0) == pytest.approx(1)
    limiter(time, None).note(10**9, debt_s_max=1)
