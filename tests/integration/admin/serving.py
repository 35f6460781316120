"""`firn serve` in a process of its own, with its addresses and its log."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT_S = 60


class Answer(NamedTuple):
    status: int
    raw: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.raw)


class Served:
    """A running node: what it said at the start, and what it logs. Ended by its own id."""

    def __init__(
        self,
        data: Path,
        *args: str,
        settings: Mapping[str, str] | None = None,
        port: str = "0",
        descriptors: int | None = None,
    ) -> None:
        """`descriptors`: how many the process may have, and may not raise."""

        def limit() -> None:
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FIRN_")
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-W", "error", "-m", "firnmq"),
                *("serve", "--data", str(data), "--port", port, *args),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONUNBUFFERED": "1", **(settings or {})},
            preexec_fn=limit,
        )
        self.log: list[str] = []
        self._logged = threading.Condition()
        self._is_silent = False
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        self.said: dict[str, str] = {}
        for line in self.process.stdout:
            name, _, text = line.strip().partition(" ")
            self.said[name] = text.strip()
            if name == "try":
                break
        else:
            self.process.wait(TIMEOUT_S)
            self._reader.join(TIMEOUT_S)
            raise AssertionError("\n".join(self.log))
        self._token = self.token

    @property
    def kafka(self) -> str:
        return self.said["kafka"].split()[0]

    @property
    def token(self) -> str | None:
        """What HTTP requests must carry, if the node said where it is."""
        path = self.said.get("token")
        return None if path is None else Path(path).read_text(encoding="utf-8").strip()

    @property
    def url(self) -> str:
        return self.said["admin"]

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        host = self.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            sent = {"Content-Type": "application/json"}
            if self._token is not None:
                sent["Authorization"] = f"Bearer {self._token}"
            sent.update(headers or {})
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return answer.document

    def lines(self, path: str) -> list[Any]:
        """The documents that a path streams."""
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return [json.loads(line) for line in answer.raw.splitlines() if line]

    def metric(self, name: str) -> float:
        """The value of a metric, given as it stands before the value; 0 if it is not there."""
        for line in self.call("GET", "/metrics").raw.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def wait_for_log(self, found: Callable[[str], bool]) -> str:
        """The first line of the log, past or to come, that is the one looked for."""
        seen = 0
        with self._logged:
            while True:
                for line in self.log[seen:]:
                    if found(line):
                        return line
                seen = len(self.log)
                assert not self._is_silent, "\n".join(self.log)
                assert self._logged.wait(TIMEOUT_S), "\n".join(self.log)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(TIMEOUT_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._logged:
                self.log.append(line.rstrip("\n"))
                self._logged.notify_all()
        with self._logged:
            self._is_silent = True
            self._logged.notify_all()


def firn(
    *args: str, stdin: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FIRN_")
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "firnmq", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**environment, **variables},
    )
