"""``python -m benchmarks [name ...]``: runs all benchmarks, or those named."""

import importlib
import pkgutil
import sys
import traceback

import benchmarks
from benchmarks.harness import REGISTRY, BenchmarkError, run_benchmarks


def load_benchmarks() -> list[str]:
    """Imports every ``bench_*`` module, and returns the names of those that cannot be."""
    broken = []
    for name in sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__)):
        if not name.startswith("bench_"):
            continue
        try:
            importlib.import_module(f"benchmarks.{name}")
        except Exception:  # One broken module must not hide the figures of the others.
            broken.append(name)
            print(f"benchmarks.{name} cannot be imported\n{traceback.format_exc()}")
    return broken


def main(only: list[str]) -> int:
    broken = load_benchmarks()
    try:
        chosen = REGISTRY.select(only)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    code = run_benchmarks(chosen)
    if broken:
        print(f"modules that cannot be imported: {', '.join(broken)}")
    return 1 if broken else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
