"""The lock on a data directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from firnmq.disk import DirectoryLock
from firnmq.errors import DirectoryInUse

HOLD = """
import sys
from pathlib import Path
from firnmq.disk import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_is_held_once_and_again_when_released(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "data")
    with pytest.raises(DirectoryInUse) as caught:
        DirectoryLock(tmp_path / "data")
    assert caught.value.path == str(tmp_path / "data")
    assert caught.value.holder.startswith("process ")
    lock.release()
    DirectoryLock(tmp_path / "data").release()


def test_another_process_is_kept_out_until_it_ends(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DirectoryInUse) as caught:
        DirectoryLock(tmp_path)
    assert caught.value.holder == f"process {holder.pid}"
    holder.kill()
    holder.communicate()
    DirectoryLock(tmp_path).release()
