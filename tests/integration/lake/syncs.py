"""Syncs in processes that a test can kill: the side of the test; `sync_run` is the other one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

TIMEOUT_S = 180


class Syncs:
    """The process that forks syncs, each of which a test waits for by its number."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.lake.sync_run"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )

    def start(
        self,
        options: dict[str, str],
        settings: dict[str, Any],
        step: str | None = None,
        count: int = 1,
    ) -> int:
        return self._ask({"options": options, "settings": settings, "step": step, "count": count})

    def ended(self, number: int) -> int:
        code = self._ask({"wait": number})
        assert code in (0, -signal.SIGKILL), self._errors.read_text()
        return code

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(TIMEOUT_S)

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert answer, self._errors.read_text()
        return int(answer)
