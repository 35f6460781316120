"""The benchmark harness: judging, recording, selecting and surviving; nothing here is timed."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import (
    Bar,
    Benchmark,
    BenchmarkError,
    Better,
    Measured,
    Registry,
    Run,
    median,
    merge_results,
    percentile,
    run_benchmarks,
    spread,
)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run("sample", scratch_root=tmp_path / "scratch") as run:
        yield run


class Bench:
    """A registry's benchmarks, run into a results file of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.results_path = directory / "results.json"
        self.scratch_root = directory / "scratch"
        self.output = io.StringIO()

    def run(self, chosen: list[Benchmark]) -> int:
        return run_benchmarks(
            chosen,
            results_path=self.results_path,
            scratch_root=self.scratch_root,
            output=self.output,
        )

    @property
    def lines(self) -> list[str]:
        return self.output.getvalue().splitlines()

    @property
    def results(self) -> dict[str, dict[str, object]]:
        results: dict[str, dict[str, object]] = json.loads(self.results_path.read_text())
        return results


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("bar", "text", "ratio", "value", "holds"),
    [
        (Bar.ratio_at_least(0.8), "ratio >= 0.8", 0.8, 1.0, True),
        (Bar.ratio_at_least(0.8), "ratio >= 0.8", 0.79, 1.0, False),
        (Bar.ratio_at_most(1.5), "ratio <= 1.5", 1.5, 9.0, True),
        (Bar.ratio_at_most(1.5), "ratio <= 1.5", 1.51, 9.0, False),
        (Bar.value_at_least(100), "value >= 100", 0.1, 100.0, True),
        (Bar.value_at_least(100), "value >= 100", 0.1, 99.0, False),
        (Bar.value_at_most(5), "value <= 5", 9.0, 5.0, True),
        (Bar.value_at_most(5), "value <= 5", 9.0, 5.1, False),
        (Bar.none(), "none", 1.0, 1.0, None),
    ],
)
def test_bar_judges_its_own_figure(
    bar: Bar, text: str, ratio: float, value: float, holds: bool | None
) -> None:
    assert bar.holds(Measured(value=value, ratio=ratio)) is holds
    assert str(bar) == text


def test_bar_on_ratio_needs_a_ratio() -> None:
    with pytest.raises(BenchmarkError, match="baseline"):
        Bar.ratio_at_least(1).holds(Measured(value=1.0))


def test_measured_works_out_the_ratio_unless_given() -> None:
    assert Measured(value=3.0, baseline=2.0).ratio == 1.5
    assert Measured(value=3.0, baseline=2.0, ratio=0.5).ratio == 0.5
    assert Measured(value=3.0).ratio is None
    assert Measured(value=3.0, baseline=0.0).ratio is None


def counting(name: str, figures: list[float], calls: list[str]) -> Callable[[], float]:
    remaining = iter(figures)

    def measure() -> float:
        calls.append(name)
        return next(remaining)

    return measure


def test_alternate_interleaves_and_takes_medians(run: Run) -> None:
    calls: list[str] = []
    measured = run.alternate(
        ours=counting("ours", [10, 11, 99, 12, 9], calls),
        baseline=counting("base", [5, 5, 1, 5, 50], calls),
        rounds=5,
        warmups=0,
    )
    assert calls == ["ours", "base", "base", "ours", "ours", "base", "base", "ours", "ours", "base"]
    assert (measured.value, measured.baseline, measured.ratio) == (11, 5, 2.2)
    assert measured.extra["spread"] == spread([10, 11, 99, 12, 9])


def test_alternate_leaves_warm_ups_out(run: Run) -> None:
    calls: list[str] = []
    measured = run.alternate(
        ours=counting("ours", [1000, 1, 1, 1, 1, 1], calls),
        baseline=counting("base", [1000, 2, 2, 2, 2, 2], calls),
        warmups=1,
        extra={"p99_ms": 7},
    )
    assert len(calls) == 12
    assert (measured.value, measured.baseline) == (1, 2)
    assert measured.extra == {"spread": 0, "baseline_spread": 0, "p99_ms": 7}


def test_repeat_takes_the_median(run: Run) -> None:
    measured = run.repeat(counting("ours", [0, 3, 1, 2, 5, 4], []), warmups=1)
    assert measured.value == 3
    assert measured.baseline is None


def test_too_few_rounds_are_refused(run: Run) -> None:
    with pytest.raises(BenchmarkError, match="at least 5"):
        run.alternate(ours=lambda: 1.0, baseline=lambda: 1.0, rounds=4)
    with pytest.raises(BenchmarkError, match="at least 5"):
        run.repeat(lambda: 1.0, rounds=1)


def test_scratch_directories_are_new_and_removed(tmp_path: Path) -> None:
    with Run("sample", scratch_root=tmp_path / "deep" / "scratch") as run:
        first, second = run.scratch(), run.scratch()
        (first / "file").write_text("x")
        assert first != second
        assert first.parent == tmp_path / "deep" / "scratch"
    assert not first.exists()
    assert not second.exists()


def test_scratch_directories_go_when_the_benchmark_crashes(tmp_path: Path) -> None:
    def crash() -> None:
        with Run("sample", scratch_root=tmp_path) as run:
            run.scratch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    assert list(tmp_path.iterdir()) == []


def test_scratch_is_on_the_repository_disk() -> None:
    assert harness.SCRATCH_ROOT.is_relative_to(harness.REPOSITORY)
    assert (harness.REPOSITORY / "pyproject.toml").exists()


def test_select_gives_all_or_the_named_in_order(registry: Registry) -> None:
    for name in ("b", "a", "c"):
        registry.benchmark(name, unit="x")(lambda run: Measured(value=1.0))
    assert [found.name for found in registry.select([])] == ["b", "a", "c"]
    assert [found.name for found in registry.select(["c", "b", "c"])] == ["c", "b"]
    with pytest.raises(BenchmarkError, match=r"no benchmark named z; there are: a, b, c"):
        registry.select(["a", "z"])


def test_two_benchmarks_cannot_share_a_name(registry: Registry) -> None:
    registry.benchmark("a", unit="x")(lambda run: Measured(value=1.0))
    with pytest.raises(BenchmarkError, match="two benchmarks"):
        registry.benchmark("a", unit="x")(lambda run: Measured(value=1.0))


def test_one_line_per_benchmark_and_a_summary(registry: Registry, bench: Bench) -> None:
    @registry.benchmark("fast", unit="MB/s", bar=Bar.ratio_at_least(0.8))
    def fast(run: Run) -> Measured:
        return Measured(value=1234.5, baseline=1000.0, extra={"p99_ms": 1.25})

    @registry.benchmark("late", unit="ms", bar=Bar.value_at_most(5), better=Better.LOWER)
    def late(run: Run) -> Measured:
        return Measured(value=7.0)

    @registry.benchmark("seen", unit="s")
    def seen(run: Run) -> Measured:
        return Measured(value=0.01234)

    assert bench.run(registry.select([])) == 0
    assert [" ".join(line.split()) for line in bench.lines] == [
        "fast 1,234 MB/s (higher is better) baseline 1,000 MB/s ratio 1.234 "
        "bar ratio >= 0.8 holds yes p99_ms 1.25",
        "late 7 ms (lower is better) bar value <= 5 holds NO",
        "seen 0.0123 s (higher is better)",
        "3 measured, 1 of 2 bars hold; missed: late",
    ]


def test_results_are_merged_and_sorted(registry: Registry, bench: Bench) -> None:
    merge_results(bench.results_path, {"other": {"value": 1}, "zeta": {"value": 0}})

    @registry.benchmark("zeta", unit="MB/s", bar=Bar.ratio_at_most(2))
    def zeta(run: Run) -> Measured:
        return Measured(value=1.23456789, baseline=1.0, extra={"p99_ms": 3, "disk": "ssd"})

    @registry.benchmark("alpha", unit="s")
    def alpha(run: Run) -> Measured:
        return Measured(value=2.0)

    assert bench.run(registry.select([])) == 0
    assert list(bench.results) == ["alpha", "other", "zeta"]
    assert bench.results["other"] == {"value": 1}
    assert bench.results["alpha"] == {
        "value": 2.0,
        "unit": "s",
        "baseline": None,
        "ratio": None,
        "bar": "none",
        "holds": None,
    }
    assert bench.results["zeta"] == {
        "value": 1.235,
        "unit": "MB/s",
        "baseline": 1.0,
        "ratio": 1.235,
        "bar": "ratio <= 2",
        "holds": True,
        "extra": {"p99_ms": 3.0, "disk": "ssd"},
    }
    assert sorted(path.name for path in bench.results_path.parent.iterdir()) == ["results.json"]


def test_a_crash_is_reported_and_does_not_stop_the_others(registry: Registry, bench: Bench) -> None:
    @registry.benchmark("broken", unit="s")
    def broken(run: Run) -> Measured:
        run.scratch()
        raise RuntimeError("no such luck")

    @registry.benchmark("fine", unit="s")
    def fine(run: Run) -> Measured:
        return Measured(value=1.0)

    assert bench.run(registry.select([])) == 1
    assert list(bench.results) == ["fine"]
    assert "RuntimeError: no such luck" in bench.lines
    assert bench.lines[-1] == "1 measured, 0 of 0 bars hold; crashed: broken"
    assert list(bench.scratch_root.iterdir()) == []


def test_a_bar_without_its_figure_counts_as_a_crash(registry: Registry, bench: Bench) -> None:
    registry.benchmark("bare", unit="s", bar=Bar.ratio_at_least(1))(lambda run: Measured(value=1.0))
    assert bench.run(registry.select([])) == 1
    assert not bench.results_path.exists()


def test_percentile_is_the_nearest_rank() -> None:
    figures = [float(n) for n in range(100, 0, -1)]
    assert percentile(figures, 50) == 50
    assert percentile(figures, 99) == 99
    assert percentile(figures, 100) == 100
    assert percentile(figures, 0) == 1
    assert percentile([7.0], 99.9) == 7
    with pytest.raises(BenchmarkError, match="at least one"):
        percentile([], 50)
    with pytest.raises(BenchmarkError, match="between 0 and 100"):
        percentile([1.0], 101)


def test_median_of_even_count_is_the_mean_of_the_middle() -> None:
    assert median([4, 1, 3, 2]) == 2.5


def test_spread_is_relative_to_the_median() -> None:
    assert spread([9, 10, 11]) == pytest.approx(0.2)
    assert spread([0, 0, 0]) == 0
