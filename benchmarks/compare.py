"""``python -m benchmarks.compare REV [name ...]``: this checkout against another revision.

Each side runs its own benchmarks on its own sources, in alternating runs. The other revision is
checked out below ``var/compare`` and compiled there; both use this environment's packages. A note
says where the benchmarks themselves differ, since a figure may then count something else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.__main__ import load_benchmarks
from benchmarks.harness import REGISTRY, REPOSITORY, BenchmarkError, Better, median, render_figure

COMPARE_ROOT = REPOSITORY / "var" / "compare"
WORSE_AT_MOST = 0.05
"""A benchmark that is worse by more than this part fails the comparison."""
_RUNS = 3
_RUN_ONE = """
import sys
from pathlib import Path
from benchmarks.__main__ import load_benchmarks
from benchmarks.harness import REGISTRY, run_benchmarks
load_benchmarks()
chosen = REGISTRY.select([sys.argv[1]])
sys.exit(run_benchmarks(chosen, results_path=Path(sys.argv[2])))
"""
"""Works with the harness of older revisions too, and leaves their results.json alone."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("rev", help="the revision to compare with, such as HEAD~1")
    parser.add_argument("names", nargs="*", help="benchmarks; all if none is named")
    parser.add_argument("--runs", type=int, default=_RUNS, help="runs of each side")
    asked = parser.parse_args()
    load_benchmarks()
    try:
        chosen = REGISTRY.select(asked.names)
    except BenchmarkError as error:
        parser.error(str(error))
    old_checkout = checked_out(asked.rev)
    if changed := _git("diff", "--name-only", asked.rev, "--", "benchmarks/*.py"):
        print(
            f"note: benchmarks differ since {asked.rev}: {', '.join(changed.split())}", flush=True
        )
    worse = []
    for each in chosen:
        old, new = alternated(each.name, old_checkout, asked.runs)
        if not old or not new:
            print(f"{each.name:<28}  not measured on both sides", flush=True)
            continue
        change = median(new) / median(old) - 1
        is_worse = (change if each.better is Better.LOWER else -change) > WORSE_AT_MOST
        if is_worse:
            worse.append(each.name)
        print(
            f"{each.name:<28}  {render_figure(median(new))} {each.unit}  "
            f"{asked.rev} {render_figure(median(old))}  ratio {1 + change:.3f}"
            f"{'  WORSE' if is_worse else ''}",
            flush=True,
        )
    if worse:
        print(f"worse by more than {WORSE_AT_MOST:.0%}: {', '.join(worse)}")
    return 1 if worse else 0


def checked_out(rev: str) -> Path:
    """A checkout of the revision with its extensions compiled; kept for the next comparison."""
    commit = _git("rev-parse", "--verify", f"{rev}^{{commit}}")
    target = COMPARE_ROOT / commit[:12]
    done = target / "var" / "compiled"
    if done.exists():
        return target
    if not target.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", str(target), commit)
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=target, check=True)
    done.parent.mkdir(exist_ok=True)
    (done.parent / "kafka").symlink_to(REPOSITORY / "var" / "kafka")  # Fetched once for all.
    done.touch()
    return target


def alternated(name: str, old_checkout: Path, runs: int) -> tuple[list[float], list[float]]:
    """The figures of both sides; every other run starts with the new one."""
    figures: dict[Path, list[float]] = defaultdict(list)
    checkouts = [old_checkout, REPOSITORY]
    for number in range(runs):
        for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
            measured = measured_in(checkout, name)
            if measured is not None:
                figures[checkout].append(float(measured["value"]))
    return figures[old_checkout], figures[REPOSITORY]


def measured_in(checkout: Path, name: str) -> dict[str, Any] | None:
    """One run of a benchmark in a checkout; None where it was skipped or is not there."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        done = subprocess.run(
            [sys.executable, "-c", _RUN_ONE, name, str(results)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode or not results.exists():
            print(done.stdout, end="", flush=True)
            return None
        entry: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))[name]
        return entry


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
