"""A Spark standalone cluster on this machine: one master, some workers, each a process.

Ports are free ones, log and work directories the caller's, and every process is ended by its own
id. Executors start the Python of this environment, so they have FirnMQ as it is installed here.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyspark

from firnmq.lake.jobs.java import use_java

START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 30
HOST: Final = "127.0.0.1"
# Executors of the machine's two cores: small ones, that begin quickly.
SETTINGS: Final[Mapping[str, str]] = {
    "spark.executor.memory": "768m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": HOST,
    "spark.driver.host": HOST,
    "spark.log.level": "ERROR",
}


class ClusterFailed(Exception):
    """A process of the cluster ended, or did not say what it had to in time."""


class StandaloneCluster:
    """Started with `with`; `master` is its address."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1) -> None:
        self._folder = folder
        self._worker_count = workers
        self._cores = cores
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.master = ""

    def __enter__(self) -> StandaloneCluster:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            port = _free_port()
            self._start("master", "master.Master", "--port", str(port))
            self._wait_for("master", "I have been elected leader")
            self.master = f"spark://{HOST}:{port}"
            for number in range(self._worker_count):
                name = f"worker-{number}"
                arguments = ("--cores", str(self._cores), "--memory", "1g")
                place = ("--work-dir", str(self._folder / name), self.master)
                self._start(name, "worker.Worker", *arguments, *place)
            for number in range(self._worker_count):
                self._wait_for(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Workers first: they end their executors."""
        for name in sorted(self._processes, reverse=True):
            process = self._processes.pop(name)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def kill(self, name: str) -> None:
        """Ends one as a crash would."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def executors_of(self, name: str) -> set[str]:
        """Numbers of the executors that a worker was given, by what it logged."""
        return set(re.findall(r"Asked to launch executor \S+/(\d+)", self._log(name)))

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        use_java()
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [
                    *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"),
                    *("--host", HOST, "--webui-port", "0", *arguments),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def _wait_for(self, name: str, text: str) -> None:
        process = self._processes[name]

        def is_there() -> bool:
            if process.poll() is not None:
                raise ClusterFailed(f"{name} ended with {process.returncode}: {self._tail(name)}")
            return text in self._log(name)

        if not _within(START_TIMEOUT_S, is_there):
            raise ClusterFailed(f"{name} did not say {text!r}: {self._tail(name)}")

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _tail(self, name: str) -> str:
        return self._log(name)[-2000:]


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.1)
    return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port
