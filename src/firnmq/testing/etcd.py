"""Real etcd members for tests: as many as asked for, each in a directory of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from firnmq.errors import FirnError
from firnmq.meta.etcd import EtcdMetaStore, EtcdSettings

_START_S = 30.0
_STOP_S = 10.0
_POLL_S = 0.05
_PORTS = range(20_000, 32_000)
"""Below the ports that the system gives to clients, so that none of them can take a member's."""


class EtcdFailed(FirnError):
    """A member did not come up; its log is in the text."""


class EtcdCluster:
    """Members on the loopback address, until `stop`. Each can be killed, paused and started."""

    def __init__(
        self,
        program: Path,
        directory: Path,
        count: int = 1,
        *,
        options: tuple[str, ...] = (),
        tls: Mapping[str, Path] | None = None,
    ) -> None:
        """`options` are more arguments for each member. `tls` turns it on for clients, who must
        show a certificate: the EtcdSettings of its files, which members use as well."""
        self._program = program
        self._options = options
        self._tls = dict(tls or {})
        self._directory = directory
        self._peer_ports = free_ports(count)
        self._client_ports = free_ports(count)
        self.login: dict[str, object] = {}
        """User and password, once authentication is enabled."""
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            self.start(number)
        self.wait_ready()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self._client_ports)

    def settings(self, **changes: object) -> EtcdSettings:
        values = {"endpoints": self.endpoints, **self._tls, **changes}
        return EtcdSettings(**values)  # type: ignore[arg-type]

    def store(self, prefix: str = "firn/", **changes: object) -> EtcdMetaStore:
        return EtcdMetaStore(self.settings(**changes), prefix=prefix)

    def start(self, number: int) -> None:
        peers = ",".join(
            f"m{each}=http://127.0.0.1:{port}" for each, port in enumerate(self._peer_ports)
        )
        peer = f"http://127.0.0.1:{self._peer_ports[number]}"
        scheme = "https" if self._tls else "http"
        client = f"{scheme}://127.0.0.1:{self._client_ports[number]}"
        with (self._directory / f"m{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [
                    str(self._program),
                    f"--name=m{number}",
                    f"--data-dir={self._directory / f'm{number}'}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--initial-cluster={peers}",
                    "--logger=zap",
                    "--log-level=warn",
                    *self._tls_options(),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _tls_options(self) -> list[str]:
        if not self._tls:
            return []
        return [
            f"--trusted-ca-file={self._tls['ca_file']}",
            f"--cert-file={self._tls['certificate_file']}",
            f"--key-file={self._tls['key_file']}",
            "--client-cert-auth",
        ]

    def manage(self, path: str, **request: object) -> Any:
        """Calls etcd's API for operators at the first member, such as `auth/enable`."""
        url = f"http://{self.endpoints[0]}/v3/{path}"
        headers = {"Content-Type": "application/json"}
        body = json.dumps(request).encode()
        with urlopen(Request(url, body, headers), timeout=_START_S) as answer:
            return json.loads(answer.read())

    def wait_ready(self) -> None:
        """Until a read that needs a majority is answered."""
        deadline = time.monotonic() + _START_S
        store = EtcdMetaStore(self.settings(call_s=1.0, **self.login))
        try:
            while True:
                try:
                    store.get("ready")
                    return
                except FirnError as error:
                    if time.monotonic() >= deadline:
                        raise EtcdFailed(f"etcd does not start: {error}\n{self._logs()}") from error
        finally:
            store.close()

    def kill(self, number: int) -> None:
        process = self._processes[number]
        if process is not None:
            process.kill()
            process.wait()
        self._processes[number] = None

    def pause(self, number: int) -> None:
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self, number: int) -> None:
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self._processes:
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for number, process in enumerate(self._processes):
            if process is None:
                continue
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._processes[number] = None

    def _logs(self) -> str:
        return "\n".join(
            path.read_text(errors="replace")[-2_000:] for path in self._directory.glob("*.log")
        )


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at this moment."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise EtcdFailed("no port is free")
