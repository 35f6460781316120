"""A real NameNode and DataNode, fetched by Maven once, for the tests of hdfs://."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

HADOOP_VERSION = "3.4.1"
CACHE = Path(__file__).resolve().parents[3] / "var" / "hadoop" / HADOOP_VERSION
_FETCH_TIMEOUT_S = 600
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 20
_POLL_S = 0.1
_NODES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}

_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>firnmq</groupId><artifactId>hadoop</artifactId><version>1</version><dependencies>
{dependencies}
</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
    "<version>{version}</version></dependency>"
)
_JARS = (
    ("org.apache.hadoop", "hadoop-common", HADOOP_VERSION),
    ("org.apache.hadoop", "hadoop-hdfs", HADOOP_VERSION),
    ("org.apache.hadoop", "hadoop-hdfs-client", HADOOP_VERSION),
    # Maven would choose a core that is older than the databind which Hadoop needs.
    ("com.fasterxml.jackson.core", "jackson-core", "2.12.7"),
)


def fetched_jars() -> Path:
    """The folder with Hadoop's jars; Maven brings them from wherever it is set up to."""
    jars = CACHE / "jars"
    if (CACHE / "complete").exists():
        return jars
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir(parents=True)
    dependencies = "\n".join(
        _DEPENDENCY.format(group=group, name=name, version=version)
        for group, name, version in _JARS
    )
    (CACHE / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
    subprocess.run(["mvn", "-q", "-B", *goal], cwd=CACHE, check=True, timeout=_FETCH_TIMEOUT_S)
    (CACHE / "complete").touch()
    return jars


class Hadoop:
    """One NameNode and one DataNode in a fresh directory, on free ports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._jars = fetched_jars()
        self.port = _free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._configure()
        self._format()
        try:
            self.start_all()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def start_all(self) -> None:
        """Returns once files can be written; after `stop`, with the files there were."""
        for node in _NODES:
            (self._directory / f"{node}.log").unlink(missing_ok=True)
        self._start("namenode")
        self._wait_for(self._is_listening, "the NameNode listens")
        self._start("datanode")
        self._wait_for(self._is_complete, "the DataNode has registered")

    def _start(self, node: str) -> None:
        with (self._directory / f"{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                self._java(node), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def pause(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _format(self) -> None:
        command = [*self._java("namenode"), "-format", "-nonInteractive"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_START_TIMEOUT_S
        )
        if done.returncode != 0:
            raise RuntimeError(f"the NameNode cannot be formatted:\n{done.stderr[-3000:]}")

    def _configure(self) -> None:
        folder = self._directory / "conf"
        for page in ("hdfs", "datanode"):  # The nodes want pages of their own on the class path.
            (folder / "webapps" / page).mkdir(parents=True)
        free = "127.0.0.1:0"
        settings = {
            "fs.defaultFS": self.url,
            "hadoop.tmp.dir": str(self._directory / "tmp"),
            "dfs.namenode.name.dir": f"file://{self._directory}/name",
            "dfs.datanode.data.dir": f"file://{self._directory}/data",
            "dfs.namenode.http-address": free,
            "dfs.datanode.address": free,
            "dfs.datanode.ipc.address": free,
            "dfs.datanode.http.address": free,
            "dfs.replication": "1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.fs-limits.min-block-size": "1048576",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>"
            for name, value in settings.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):
            (folder / name).write_text(f"<configuration>{properties}</configuration>")
        (folder / "log4j.properties").write_text(
            "log4j.rootLogger=INFO, console\n"
            "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.console.target=System.err\n"
            "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n\n"
        )

    def _java(self, node: str) -> list[str]:
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        opened = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in ("java.lang", "java.nio")]
        classes = f"{self._directory / 'conf'}{os.pathsep}{self._jars}/*"
        return ["java", *options, *opened, "-cp", classes, _NODES[node]]

    def _is_listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _is_complete(self) -> bool:
        log = (self._directory / "namenode.log").read_text(errors="replace")
        return "Adding new storage ID" in log

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not condition():
            ended = [node for node, each in self._processes.items() if each.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(
                    (self._directory / f"{node}.log").read_text(errors="replace")[-3000:]
                    for node in self._processes
                )
                raise RuntimeError(f"waited in vain until {what}; ended: {ended}\n{logs}")
            time.sleep(_POLL_S)


def _free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])
