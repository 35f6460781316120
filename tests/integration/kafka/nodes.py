"""A node in a process of its own: started, stopped, killed and started again on the same port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
QUICK = {
    "FIRN_GROUPS_SESSION_TIMEOUT_MIN_MS": "1000",
    "FIRN_GROUPS_INITIAL_REBALANCE_DELAY_MS": "0",
    "FIRN_KAFKA_AUTO_CREATE_TOPICS": "false",
}
"""Settings of a node for impatient tests; it makes no topics of its own accord."""


BRISK = QUICK | {
    "FIRN_GROUPS_CONSUMER_HEARTBEAT_INTERVAL_MS": "200",
    "FIRN_GROUPS_CONSUMER_SESSION_TIMEOUT_MS": "10000",
}
"""The same for members of consumer groups, which the coordinator tells how often to ask."""

LAGGING = "tests.integration.kafka.lagging_node"
"""A node whose high watermarks are behind the ends of its logs."""


class NodeProcess:
    """One data directory and the process that serves it. Each process is ended by its own id."""

    def __init__(
        self, data: Path, settings: Mapping[str, str] | None = None, *, module: str = "firnmq"
    ) -> None:
        """`module` is run with the arguments of `firn`."""
        self.data = data
        self._module = module
        self._settings = settings or {}
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self._errors: deque[str] = deque(maxlen=200)
        self._admin_url = ""
        self._drains: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def admin_url(self) -> str:
        """Where the HTTP listener is."""
        return self._admin_url

    def start(self) -> None:
        """Returns when the node has said where it listens; a restart takes the port it had."""
        assert self._process is None
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", self._module, "serve", "--data", str(self.data)),
                *("--port", str(self._port), "--admin-port", "0"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._settings},
        )
        self._process = process
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stdout:
                words = line.split()
                if words[:1] == ["kafka"]:
                    self._port = int(words[1].rpartition(":")[2])
                elif words[:1] == ["admin"]:  # The line after.
                    self._admin_url = words[1]
                    break
            else:
                raise AssertionError(f"the node did not start: {process.stderr.read()}")
        finally:
            watchdog.cancel()
        self._drains = [
            threading.Thread(target=self._drain, args=(stream, kept))
            for stream, kept in ((process.stdout, None), (process.stderr, self._errors))
        ]
        for drain in self._drains:
            drain.start()

    def forget_port(self) -> None:
        """The next start takes any port."""
        self._port = 0

    def terminate(self) -> int:
        """Asks the node to stop and waits; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process as a crash would."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None:
            self.terminate()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def errors(self) -> str:
        """What the node wrote to its standard error lately."""
        return "".join(self._errors)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        process.send_signal(number)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the node did not stop: {self.errors()}") from None
        finally:
            for drain in self._drains:
                drain.join()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            self._process = None
        return code

    @staticmethod
    def _drain(stream: object, kept: deque[str] | None) -> None:
        for line in stream:  # type: ignore[attr-defined]
            if kept is not None:
                kept.append(line)
