"""Iceberg's own REST catalog in a process, and a gate before it that loses answers."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from firnmq.lake.jobs.java import java_home
from tests.integration.lake.iceberg_runtime import fetched_rest_jars

HOST = "127.0.0.1"
START_TIMEOUT_S = 60
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"


class RestCatalogProcess:
    """Keeps its tables in SQLite below the folder, so that it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/"

    def start(self) -> None:
        environment = {
            **os.environ,
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/rest.db",
            "CATALOG_WAREHOUSE": f"file://{self._folder}/tables",
        }
        with (self._folder / "rest.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(java_home() / "bin" / "java"), "-Xmx256m", "-XX:TieredStopAtLevel=1"),
                    *("-XX:+UseSerialGC", "-cp", ":".join(map(str, fetched_rest_jars())), _MAIN),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        end = time.monotonic() + START_TIMEOUT_S
        while not self._is_there():
            log_text = (self._folder / "rest.log").read_text(errors="replace")
            assert self._process.poll() is None, log_text[-2000:]
            assert time.monotonic() < end, log_text[-2000:]
            time.sleep(0.1)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _is_there(self) -> bool:
        try:
            return _asked(self._port, Request("GET", "/v1/config", {}, b"")).status == 200
        except (OSError, http.client.HTTPException):
            return False


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def is_commit(self) -> bool:
        """Of a table that is there."""
        return self.method == "POST" and "/tables/" in self.path


class Answer(NamedTuple):
    status: int
    body: bytes


Rule = Callable[[Request, Callable[[], Answer]], Answer | None]
"""What becomes of a request; it may be passed on, any number of times. None: no answer at all."""


class Gate:
    """Listens before a catalog, passes requests on by a rule, and remembers them."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.rule: Rule = lambda _, passed_on: passed_on()
        self.closing = Event()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                request = Request(
                    self.command, self.path, dict(self.headers.items()), self.rfile.read(size)
                )
                gate.requests.append(request)
                answer = gate.rule(request, lambda: _asked(port, request))
                if answer is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that is gone is what some of the tests are about."""

        self._scheme = "http" if context is None else "https"
        self._server = Server((HOST, 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://{HOST}:{self._server.server_address[1]}/"

    def commits(self) -> list[Request]:
        return [request for request in self.requests if request.is_commit]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _asked(port: int, request: Request) -> Answer:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    headers = {
        name: value
        for name, value in request.headers.items()
        if name.lower() in ("content-type", "authorization", "content-length")
    }
    try:
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port
