"""The two servers that Kafka clients are measured against: ours, and Apache Kafka.

Apache Kafka is fetched by Maven into the repository's scratch directory once, and runs as one node
that is broker and controller, with the heap and the collector that its own start script chooses.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import REPOSITORY, Skipped

KAFKA_VERSION = "4.3.1"
_SCALA_VERSION = "2.13"
_LOG4J_VERSION = "2.25.4"
CACHE_ROOT = REPOSITORY / "var" / "kafka"
_FETCH_TIMEOUT_S = 300
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
_SAMPLE_S = 0.02

JVM_OPTIONS = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""What Kafka's start script passes, so that the peer is as its makers meant it to be."""


class Server(ABC):
    """A server process with a directory and a port of its own; may be started again."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @abstractmethod
    def command(self) -> list[str]: ...

    def start(self) -> None:
        """Returns once the port takes connections."""
        self.launch()
        try:
            self.wait_listening()
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Starts the process, which may need others before it listens."""
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_listening(self) -> None:
        """Returns once the port takes connections."""
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start:\n{self._log_tail()}") from None
                time.sleep(0.002)

    def _log_tail(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """Ends the process as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Firn(Server):
    """Ours, as `firn serve` runs it."""

    name = "firn"

    def command(self) -> list[str]:
        data = self.directory / "data"
        serve = ["serve", "--data", str(data), "--port", str(self.port), "--admin-port", "0"]
        return [sys.executable, "-m", "firnmq", *serve]


class ApacheKafka(Server):
    """Apache Kafka as one KRaft node. Skipped is raised where it cannot be had."""

    name = "kafka"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._java = find_program("java")
        self._classpath = f"{fetch_kafka()}/*"
        self._properties = directory / "server.properties"
        self._properties.write_text(
            server_properties(directory / "data", self.port, free_port()), encoding="utf-8"
        )
        identity = self._storage_tool("random-uuid").strip()
        self._storage_tool("format", "-t", identity, "-c", str(self._properties))

    def _storage_tool(self, *arguments: str) -> str:
        command = [self._java, "-cp", self._classpath, "kafka.tools.StorageTool", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def command(self) -> list[str]:
        main = ["kafka.Kafka", str(self._properties)]
        return [self._java, *JVM_OPTIONS, "-cp", self._classpath, *main]


def find_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Skipped("no Apache Kafka")
    return found


def fetch_kafka(cache_root: Path = CACHE_ROOT) -> Path:
    """The folder with Kafka's archives; fetched on first use."""
    target = cache_root / KAFKA_VERSION
    if target.exists():
        return target
    maven = find_program("mvn")
    cache_root.mkdir(parents=True, exist_ok=True)
    project = cache_root / "pom.xml"
    project.write_text(project_file(), encoding="utf-8")
    # Filled beside and renamed: an interrupted download must not look complete.
    fresh = cache_root / f"{KAFKA_VERSION}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    command = [maven, "-B", "-q", "-f", str(project), "dependency:copy-dependencies"]
    options = [f"-DoutputDirectory={fresh}", "-DincludeScope=runtime"]
    try:
        subprocess.run(
            [*command, *options], check=True, capture_output=True, timeout=_FETCH_TIMEOUT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Skipped("no Apache Kafka") from error
    os.replace(fresh, target)
    return target


def project_file() -> str:
    """A Maven project that needs what a Kafka node needs."""
    wanted = (
        ("org.apache.kafka", f"kafka_{_SCALA_VERSION}", KAFKA_VERSION),
        ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        # Without a binding, Kafka's own logging controller finds a class missing.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J_VERSION),
    )
    dependencies = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in wanted
    )
    return (
        "<project>\n"
        "  <modelVersion>4.0.0</modelVersion>\n"
        "  <groupId>benchmarks</groupId><artifactId>kafka-peer</artifactId>"
        "<version>1</version><packaging>pom</packaging>\n"
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n"
        "</project>\n"
    )


def server_properties(
    data: Path, port: int, controller_port: int, changes: Mapping[str, object] | None = None
) -> str:
    """Kafka's defaults but for what one node needs, and `changes`."""
    options: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": data,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        # A deleted topic's pages must not be written back during later rounds.
        "log.segment.delete.delay.ms": 100,
        "log.initial.task.delay.ms": 100,
        **(changes or {}),
    }
    return "".join(f"{name}={value}\n" for name, value in options.items())


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


# What the kernel knows about a process -----------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, in user and kernel mode."""
    return parse_cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) / os.sysconf("SC_CLK_TCK")


def parse_cpu_ticks(stat: str) -> int:
    # The program's name comes second, in parentheses, and may hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    user, kernel = fields[11:13]
    return int(user) + int(kernel)


def anonymous_bytes(pid: int) -> int:
    """Resident memory that is not the page cache's."""
    return parse_anonymous_bytes(Path(f"/proc/{pid}/status").read_text())


def parse_anonymous_bytes(status: str) -> int:
    for line in status.splitlines():
        name, _, rest = line.partition(":")
        if name == "RssAnon":
            kibibytes, _, _ = rest.strip().partition(" ")
            return int(kibibytes) * 1024
    raise ValueError("the status has no RssAnon")


@contextmanager
def peak_anonymous_bytes(pid: int) -> Iterator[list[int]]:
    """Samples while the block runs; the list then holds the peak alone."""
    samples = [anonymous_bytes(pid)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_S):
            samples.append(anonymous_bytes(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples[:] = [max(samples)]
