"""What commands write into a data directory is for its user alone, whatever the umask is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import firnmq


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The object store, a folder, of a node that is lost."""
    path = tmp_path_factory.mktemp("lost")
    (path / "tier").mkdir()
    with firnmq.open(path / "data", tiering=(path / "tier").as_uri()) as store:
        topic = store.create_topic("t", options={"tiering": "on"})
        topic.append(["one", "two"])
        topic.roll()
        store.upload()
    return path / "tier"


def firn(*arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "firnmq", *arguments],
        capture_output=True,
        text=True,
        check=False,
        umask=0o022,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr


def open_to_others(directory: Path) -> list[str]:
    found = [directory, *directory.rglob("*")]
    return [str(path) for path in found if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO)]


def test_recover(lost: Path, tmp_path: Path) -> None:
    firn("recover", "--from", lost.as_uri(), "--data", str(tmp_path / "new"))
    assert (tmp_path / "new" / "db").is_dir()
    assert open_to_others(tmp_path / "new") == []


def test_tier_and_topic_commands(lost: Path, tmp_path: Path) -> None:
    data = str(tmp_path / "new")
    firn("recover", "--from", lost.as_uri(), "--data", data)
    firn("topic", "create", "more", "--data", data)
    for command in ("status", "upload"):
        firn("tier", command, "--data", data, FIRN_TIERING_URL=lost.as_uri())
    assert open_to_others(tmp_path / "new") == []
