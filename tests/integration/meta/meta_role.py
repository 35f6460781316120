"""`firn serve --role meta` in processes of their own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_SOON_S = 60.0


class MetaProcess:
    """One process, with all that it logs in a file."""

    def __init__(self, data: Path, settings: Mapping[str, object]) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FIRN_")
        }
        environment |= {name: str(value) for name, value in settings.items()}
        self._log = data.with_suffix(".log")
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "firnmq", "serve"),
                    *("--role", "meta", "--data", str(data)),
                ],
                cwd=ROOT,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self._said = self.process.stdout
        for line in self._said:
            if line.startswith("stop"):
                return
        self._wait()
        raise AssertionError(self.log_text())

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def etcd_pid(self) -> int:
        """The member that runs now."""
        return int(self.log_text().rsplit("etcd_started pid=", 1)[1].split()[0])

    def stop(self) -> None:
        self.process.terminate()
        self._wait()

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(_SOON_S)
        self._said.close()


class Watched:
    """A process that is not ours, whose end can be waited for."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def wait_for_end(self) -> None:
        ended, _, _ = select.select([self._descriptor], [], [], _SOON_S)
        os.close(self._descriptor)
        assert ended, "the process goes on"
