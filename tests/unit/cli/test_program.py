"""Printed commands begin with what the user can type."""

from pathlib import Path

import pytest

from firnmq.cli.program import program


def _executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_on_the_path_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = _executable(tmp_path / "bin" / "firn")
    monkeypatch.setenv("PATH", str(called.parent))
    assert program([str(called)], tmp_path) == "firn"


def test_in_a_checkout_it_is_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = _executable(tmp_path / ".venv" / "bin" / "firn")
    monkeypatch.setenv("PATH", "")
    assert program([str(called)], tmp_path) == ".venv/bin/firn"
    _executable(tmp_path / "firn")
    assert program([str(called)], tmp_path) == "./firn"
    assert program([str(called)], tmp_path / "elsewhere") == str(called)


def test_another_program_of_the_same_name_is_not_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _executable(tmp_path / "other" / "firn")
    called = _executable(tmp_path / "env" / "bin" / "firn")
    monkeypatch.setenv("PATH", str(other.parent))
    assert program([str(called)], tmp_path) == "env/bin/firn"
