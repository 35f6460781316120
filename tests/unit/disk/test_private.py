"""What others may do with a data directory: nothing."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from firnmq.disk.private import make_private
from firnmq.server import LocalStore


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def opened(path: Path) -> None:
    LocalStore(path, background=False).close()


def test_a_new_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    opened(tmp_path / "above" / "data")
    assert mode(tmp_path / "above" / "data") == 0o700
    assert mode(tmp_path / "above" / "data" / "LOCK") == 0o600


def test_a_directory_of_an_earlier_version_is_closed_and_that_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    opened(data)
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    other = data / "notes.txt"
    other.touch(0o644)
    caplog.set_level(logging.INFO, "firnmq.store")
    opened(data)
    assert mode(data) == mode(data / "db") == 0o700
    assert mode(data / "meta.db") == 0o600
    assert not any(mode(path) & 0o077 for path in (data / "db").rglob("IDENTITY"))
    assert mode(other) == 0o644, "files of other users are unchanged"
    opened(data)
    told = [each for each in caplog.messages if "permissions_tightened" in each]
    assert len(told) == 1
    assert str(data) in told[0]


def test_a_program_with_an_open_umask_leaves_nothing_open(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = os.umask(0o022)
    try:
        store = LocalStore(data, background=False)
        try:
            assert mode(data) == mode(data / "db") == 0o700
            assert {mode(path) for path in data.glob("meta.db*")} == {0o600}
        finally:
            store.close()
    finally:
        os.umask(before)


def test_a_directory_behind_a_link_is_closed(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(mode=0o755)
    link.symlink_to(real)
    opened(link)
    assert mode(real) == 0o700


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(0o644)
    data = tmp_path / "data"
    (data / "db").mkdir(parents=True)
    data.chmod(0o755)
    os.symlink(outside, data / "db" / "link")
    os.symlink(tmp_path, data / "db2")
    assert make_private(data, "db") == 2
    assert mode(outside) == 0o644
    assert mode(data) == 0o700
