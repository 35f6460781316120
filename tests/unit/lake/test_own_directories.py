"""Where the Java shim goes, which is executed; options by file, which are secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.errors import InvalidArgument
from firnmq.lake.jobs import java
from firnmq.lake.jobs.java import _cache_directory, _shimmed
from firnmq.lake.plans.option_file import options_in


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, of a user without a home."""
    (tmp_path / "no-home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-home"))
    monkeypatch.setattr(java.tempfile, "tempdir", str(tmp_path))
    _cache_directory.cache_clear()
    yield tmp_path
    _cache_directory.cache_clear()


def test_a_temporary_folder_is_for_its_user_alone(temporary: Path) -> None:
    home = _shimmed(Path("/usr/bin/java"))
    folder = temporary / f"firnmq-{os.getuid()}"
    assert home.parent == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("trap", ["writable", "link", "file"])
def test_a_folder_that_somebody_else_has_put_there_is_not_used(temporary: Path, trap: str) -> None:
    taken = temporary / f"firnmq-{os.getuid()}"
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    if trap == "writable":
        taken.mkdir()
        taken.chmod(0o777)
    elif trap == "link":
        taken.symlink_to(elsewhere)
    else:
        taken.touch()
    home = _shimmed(Path("/usr/bin/java"))
    assert home.parent.parent == temporary
    assert home.parent not in (taken, elsewhere)
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    assert list(elsewhere.iterdir()) == []
    assert _shimmed(Path("/usr/bin/java")) == home


def test_options_by_file(tmp_path: Path) -> None:
    file = tmp_path / "options"
    file.write_text("# who asks\nkafka.sasl.username = ann\n\nkafka.sasl.password=a=b # c\n")
    assert options_in(file) == {"kafka.sasl.username": "ann", "kafka.sasl.password": "a=b # c"}


@pytest.mark.parametrize("text", ["secret", "=secret", "a=1\nsecret"])
def test_a_bad_line_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "options"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=rf"line {text.count(chr(10)) + 1}") as caught:
        options_in(file)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        options_in(tmp_path / "none")
