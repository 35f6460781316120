"""`firn serve --processes N` as a user runs it, and what tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from firnmq.nodefile import NodeAddress, node_serving, process_count
from tests.integration.cluster.nodes import TTL_MS, WAIT_S, wait_until
from tests.integration.kafka.nodes import QUICK

SETTINGS = {**QUICK, "FIRN_CLUSTER_SESSION_TTL_MS": str(TTL_MS)}


class Machine:
    """The processes of one directory; ended by their own ids."""

    def __init__(self, data: Path, count: int = 2, settings: Mapping[str, str] | None = None):
        self.data = data
        self.count = count
        self.environment = {**os.environ, **SETTINGS, **(settings or {}), "PYTHONUNBUFFERED": "1"}
        self.lines: list[str] = []
        """What the supervisor said."""
        self.kafka: list[str] = []
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._log = data.parent / f"{data.name}.log"

    def start(self, port: int = 0) -> None:
        """Returns once all processes serve."""
        ready = threading.Event()
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(
                serve_command(self.data, self.count, port),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        self.lines = []

        def read() -> None:
            assert process.stdout is not None
            with process.stdout as stdout:
                for line in stdout:
                    self.lines.append(line)
                    words = line.split()
                    if words[:1] == ["kafka"]:
                        self.kafka = words[1].split(",")
                    elif words[:1] == ["admin"]:
                        self.url = words[1]
                    elif words[:1] == ["stop"]:
                        ready.set()
            ready.set()

        self._reader = threading.Thread(target=read)
        self._reader.start()
        assert ready.wait(WAIT_S), self.log()
        assert "".join(self.lines[-1:]).startswith("stop "), self.log()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def process(self, number: int) -> NodeAddress:
        address = node_serving(self.data / f"process{number}")
        assert address is not None
        return address

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """Ends the supervisor as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks the supervisor to stop all, and waits; its exit code."""
        return self._end(number)

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGTERM)

    def wait_ended(self) -> None:
        """Returns once no process has a part of the directory open."""
        paths = [self.data / f"process{each + 1}" for each in range(process_count(self.data))]
        wait_until(lambda: not any(map(node_serving, paths)), "all processes have ended")

    def get(self, path: str) -> Any:
        with urlopen(f"{self.url}{path}", timeout=WAIT_S) as answer:
            return json.load(answer)

    def answer(self, path: str) -> tuple[int, str]:
        try:
            found: HTTPResponse = urlopen(f"{self.url}{path}", timeout=WAIT_S)
        except HTTPError as error:
            return error.code, error.read().decode()
        with found:
            return found.status, found.read().decode()

    def send(self, method: str, path: str, body: object) -> Any:
        request = Request(
            f"{self.url}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    def states(self) -> dict[int, str]:
        """Of the processes, as their common address tells."""
        return {each["process"]: each["state"] for each in self.get("/v1/node")["processes"]}

    def wait_ready(self) -> None:
        wanted = dict.fromkeys(range(1, self.count + 1), "ready")
        wait_until(lambda: self.states() == wanted, "all processes are ready")

    def firn(self, *arguments: str) -> str:
        done = firn(*arguments, "--data", str(self.data), environment=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        assert self._reader is not None
        process.send_signal(number)
        try:
            return process.wait(WAIT_S)
        finally:
            self._process = None
            self._reader.join(WAIT_S)


def serve_command(data: Path, count: int, port: int = 0) -> list[str]:
    command = [sys.executable, "-m", "firnmq", "serve", "--data", str(data)]
    return [*command, "--processes", str(count), "--port", str(port), "--admin-port", "0"]


def firn(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firnmq", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=None if environment is None else dict(environment),
        check=False,
    )
