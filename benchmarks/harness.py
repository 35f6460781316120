"""How a benchmark is declared, measured, judged and recorded.

A module ``benchmarks/bench_*.py`` registers functions::

    @benchmark("append_durable", unit="MB/s", bar=Bar.ratio_at_least(0.8))
    def append_durable(run: Run) -> Measured:
        directory = run.scratch()
        return run.alternate(ours=lambda: ..., baseline=lambda: ...)

Ours and the baseline are measured in alternating rounds, so that a machine that slows down or
speeds up during a run does so for both, and medians are compared.
"""

import gc
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

ROUND_COUNT_MIN = 5
"""Fewer rounds than this give a median that one disturbed round can move."""

REPOSITORY = Path(__file__).resolve().parent.parent

SCRATCH_ROOT = REPOSITORY / "var" / "bench"
"""On the repository's disk: a system's temporary directory may be memory."""

RESULTS_PATH = Path(__file__).resolve().parent / "results.json"


class BenchmarkError(Exception):
    """A benchmark is declared or called wrongly; the message says how."""


class Skipped(Exception):
    """What a benchmark compares with cannot be had here; the message says what."""


class Better(Enum):
    """Which direction of a figure is good, for the reader of the line; the bar says its own."""

    HIGHER = "higher"
    LOWER = "lower"


class Subject(Enum):
    """What a bar is held against."""

    RATIO = "ratio"
    VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One benchmark's outcome, all figures in the benchmark's unit.

    ``ratio`` is value / baseline and is worked out where it is not given. ``extra`` holds further
    figures or facts worth recording, for example ``{"p99_ms": 1.8}``. ``also_holds`` is for a
    second condition, on one of those: where it is False the bar is missed. ``holds_instead`` is for
    a condition that a benchmark's text names as good enough: where it is True the bar is met.
    """

    value: float
    baseline: float | None = None
    ratio: float | None = None
    also_holds: bool = True
    holds_instead: bool = False
    extra: Mapping[str, float | int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ratio is None and self.baseline:
            object.__setattr__(self, "ratio", self.value / self.baseline)


@dataclass(frozen=True, slots=True)
class Bar:
    """What a benchmark promises; made with one of the class methods."""

    subject: Subject | None
    comparison: str
    limit: float

    @classmethod
    def ratio_at_least(cls, limit: float) -> Self:
        return cls(Subject.RATIO, ">=", limit)

    @classmethod
    def ratio_at_most(cls, limit: float) -> Self:
        return cls(Subject.RATIO, "<=", limit)

    @classmethod
    def value_at_least(cls, limit: float) -> Self:
        return cls(Subject.VALUE, ">=", limit)

    @classmethod
    def value_at_most(cls, limit: float) -> Self:
        return cls(Subject.VALUE, "<=", limit)

    @classmethod
    def none(cls) -> Self:
        """Reported only."""
        return cls(None, "", 0.0)

    def holds(self, measured: Measured) -> bool | None:
        """Whether the bar is met; None where there is no bar."""
        if self.subject is None:
            return None
        figure = measured.ratio if self.subject is Subject.RATIO else measured.value
        if figure is None:
            raise BenchmarkError("a bar on the ratio needs a baseline or a ratio in Measured")
        if measured.holds_instead:
            return True
        if not measured.also_holds:
            return False
        return figure >= self.limit if self.comparison == ">=" else figure <= self.limit

    def __str__(self) -> str:
        if self.subject is None:
            return "none"
        return f"{self.subject.value} {self.comparison} {self.limit:g}"


class Run:
    """What a benchmark function is given: scratch directories and the measuring loop.

    A context manager; on exit every scratch directory is removed.
    """

    def __init__(self, name: str, *, scratch_root: Path = SCRATCH_ROOT) -> None:
        self.name = name
        self._scratch_root = scratch_root
        self._scratch: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for directory in self._scratch:
            shutil.rmtree(directory, ignore_errors=True)
        self._scratch.clear()

    def scratch(self) -> Path:
        """A new empty directory on the repository's disk, removed after the benchmark."""
        self._scratch_root.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self._scratch_root))
        self._scratch.append(directory)
        return directory

    def alternate(
        self,
        *,
        ours: Callable[[], float],
        baseline: Callable[[], float],
        rounds: int = ROUND_COUNT_MIN,
        warmups: int = 1,
        extra: Mapping[str, float | int | str] | None = None,
    ) -> Measured:
        """Medians of alternating rounds; each callable does one round and returns its figure.

        Every other round starts with the baseline, so that neither always runs on the disk or
        cache state that the other leaves behind. The spread of both is recorded in ``extra``.
        """
        _require_rounds(rounds)
        for _ in range(warmups):
            ours()
            baseline()
        ours_figures: list[float] = []
        baseline_figures: list[float] = []
        for index in range(rounds):
            turns = [(ours, ours_figures), (baseline, baseline_figures)]
            for measure, figures in turns if index % 2 == 0 else reversed(turns):
                gc.collect()
                figures.append(measure())
        spreads = {"spread": spread(ours_figures), "baseline_spread": spread(baseline_figures)}
        return Measured(
            value=median(ours_figures),
            baseline=median(baseline_figures),
            extra={**spreads, **(extra or {})},
        )

    def repeat(
        self,
        ours: Callable[[], float],
        *,
        rounds: int = ROUND_COUNT_MIN,
        warmups: int = 1,
        extra: Mapping[str, float | int | str] | None = None,
    ) -> Measured:
        """The median of several rounds, where there is nothing to compare with."""
        _require_rounds(rounds)
        for _ in range(warmups):
            ours()
        figures: list[float] = []
        for _ in range(rounds):
            gc.collect()
            figures.append(ours())
        return Measured(value=median(figures), extra={"spread": spread(figures), **(extra or {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A registered benchmark."""

    name: str
    unit: str
    bar: Bar
    better: Better
    function: Callable[[Run], Measured]


class Registry:
    """Benchmarks by name, in the order in which they were registered."""

    def __init__(self) -> None:
        self._benchmarks: dict[str, Benchmark] = {}

    def benchmark(
        self,
        name: str,
        *,
        unit: str,
        bar: Bar | None = None,
        better: Better = Better.HIGHER,
    ) -> Callable[[Callable[[Run], Measured]], Callable[[Run], Measured]]:
        """Registers the decorated function; without a bar its figures are only reported."""

        def register(function: Callable[[Run], Measured]) -> Callable[[Run], Measured]:
            if name in self._benchmarks:
                raise BenchmarkError(f"two benchmarks are named {name!r}; rename one")
            self._benchmarks[name] = Benchmark(
                name=name, unit=unit, bar=bar or Bar.none(), better=better, function=function
            )
            return function

        return register

    @property
    def names(self) -> list[str]:
        return list(self._benchmarks)

    def select(self, only: Sequence[str]) -> list[Benchmark]:
        """The named benchmarks, or all; a name that is not registered is an error."""
        unknown = sorted(set(only) - self._benchmarks.keys())
        if unknown:
            raise BenchmarkError(
                f"no benchmark named {', '.join(unknown)}; "
                f"there are: {', '.join(sorted(self._benchmarks)) or 'none'}"
            )
        chosen = dict.fromkeys(only or self._benchmarks)
        return [self._benchmarks[name] for name in chosen]


REGISTRY = Registry()
benchmark = REGISTRY.benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A benchmark that ran to its end, judged against its bar."""

    benchmark: Benchmark
    measured: Measured
    holds: bool | None

    def line(self) -> str:
        """All there is to say, on one line."""
        unit, better = self.benchmark.unit, self.benchmark.better.value
        parts = [
            f"{self.benchmark.name:<28}",
            f"{render_figure(self.measured.value)} {unit} ({better} is better)",
        ]
        if self.measured.baseline is not None:
            parts.append(f"baseline {render_figure(self.measured.baseline)} {unit}")
        if self.measured.ratio is not None:
            parts.append(f"ratio {self.measured.ratio:.3f}")
        if self.holds is not None:
            parts.append(f"bar {self.benchmark.bar}")
            parts.append(f"holds {'yes' if self.holds else 'NO'}")
        for name, figure in self.measured.extra.items():
            shown = figure if isinstance(figure, str) else render_figure(figure)
            parts.append(f"{name} {shown}")
        return "  ".join(parts)

    def entry(self) -> dict[str, Any]:
        """The record for the results file."""
        entry: dict[str, Any] = {
            "value": rounded(self.measured.value),
            "unit": self.benchmark.unit,
            "baseline": rounded(self.measured.baseline),
            "ratio": rounded(self.measured.ratio),
            "bar": str(self.benchmark.bar),
            "holds": self.holds,
        }
        if self.measured.extra:
            entry["extra"] = {
                name: figure if isinstance(figure, str) else rounded(figure)
                for name, figure in self.measured.extra.items()
            }
        return entry


def run_benchmarks(
    benchmarks: Iterable[Benchmark],
    *,
    results_path: Path = RESULTS_PATH,
    scratch_root: Path = SCRATCH_ROOT,
    output: TextIO | None = None,
) -> int:
    """Runs one after the other, records each as it ends and prints a summary.

    Returns the exit code: 0 when all ran to their end, met bars or not; 1 when one crashed.
    """
    out = output if output is not None else sys.stdout
    outcomes: list[Outcome] = []
    crashed: list[str] = []
    for chosen in benchmarks:
        try:
            with Run(chosen.name, scratch_root=scratch_root) as run:
                measured = chosen.function(run)
            outcome = Outcome(benchmark=chosen, measured=measured, holds=chosen.bar.holds(measured))
        except Skipped as reason:
            print(f"{chosen.name:<28}  skipped: {reason}", file=out, flush=True)
            continue
        except Exception:  # One broken benchmark must not hide the figures of the others.
            crashed.append(chosen.name)
            print(f"{chosen.name:<28}  CRASHED\n{traceback.format_exc()}", file=out, flush=True)
            continue
        outcomes.append(outcome)
        merge_results(results_path, {chosen.name: outcome.entry()})
        print(outcome.line(), file=out, flush=True)
    print(_summary(outcomes, crashed), file=out, flush=True)
    return 1 if crashed else 0


def _summary(outcomes: Sequence[Outcome], crashed: Sequence[str]) -> str:
    held = [outcome for outcome in outcomes if outcome.holds]
    missed = [outcome.benchmark.name for outcome in outcomes if outcome.holds is False]
    summary = f"{len(outcomes)} measured, {len(held)} of {len(held) + len(missed)} bars hold"
    if missed:
        summary += f"; missed: {', '.join(missed)}"
    if crashed:
        summary += f"; crashed: {', '.join(crashed)}"
    return summary


def merge_results(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts entries into the results file, keeps the others, and replaces the file as a whole."""
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results.update(entries)
    fresh = path.with_suffix(".json.new")
    fresh.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(fresh, path)


def median(figures: Iterable[float]) -> float:
    """The middle figure, or the mean of the middle two."""
    return statistics.median(figures)


def percentile(figures: Iterable[float], percent: float) -> float:
    """The smallest figure that at least ``percent`` of all figures do not exceed."""
    ordered = sorted(figures)
    if not ordered:
        raise BenchmarkError("a percentile needs at least one figure")
    if not 0 <= percent <= 100:
        raise BenchmarkError(f"a percentile is between 0 and 100, not {percent}")
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(rank, 1) - 1]


def spread(figures: Sequence[float]) -> float:
    """How far apart the extremes are, as a part of the median: 0.1 is ten per cent."""
    middle = median(figures)
    return (max(figures) - min(figures)) / abs(middle) if middle else 0.0


def rounded(figure: float | None) -> float | None:
    """Four significant digits: more would only make every run's file differ."""
    return None if figure is None else float(f"{figure:.4g}")


def render_figure(figure: float) -> str:
    """A figure for people: 12,300 or 4.56 or 0.0123."""
    if abs(figure) >= 1000:
        return f"{figure:,.0f}"
    return f"{figure:.3g}"


def _require_rounds(rounds: int) -> None:
    if rounds < ROUND_COUNT_MIN:
        raise BenchmarkError(f"{rounds} rounds are too few; take at least {ROUND_COUNT_MIN}")
