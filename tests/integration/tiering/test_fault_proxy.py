"""The proxy does what its faults say, before a plain HTTP server and before S3."""

import http.client
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from firnmq.testing.fault_proxy import Fault, FaultProxy, ProxyProcess

BODY = bytes(range(256)) * 4_000


class Handler(BaseHTTPRequestHandler):
    """GET gives BODY, in chunks below /chunked; PUT gives the length of what it got."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path.startswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(BODY), 100_000):
                piece = BODY[at : at + 100_000]
                self.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(BODY)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        answer = b"%d" % len(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.puts.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.puts = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxy(server: ThreadingHTTPServer) -> Iterator[FaultProxy]:
    proxy = FaultProxy(("127.0.0.1", server.server_address[1]))
    yield proxy
    proxy.stop()


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    yield client
    client.close()


def get(client: http.client.HTTPConnection, path: str = "/", method: str = "GET") -> bytes:
    client.request(method, path)
    response = client.getresponse()
    assert response.status == 200
    return response.read()


def test_without_faults_everything_passes_on_one_connection(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    assert get(client) == BODY
    assert get(client, "/chunked") == BODY
    assert get(client, method="HEAD") == b""
    client.request("PUT", "/x?y=z", body=BODY)
    assert client.getresponse().read() == b"%d" % len(BODY)
    assert get(client) == BODY
    assert proxy.exchanges[3] == ("PUT", "/x?y=z")


def test_the_first_byte_is_late(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    get(client)
    proxy.inject(Fault(first_byte_ms=120))
    began = time.monotonic()
    client.request("GET", "/")
    response = client.getresponse()
    took = time.monotonic() - began
    assert took >= 0.12
    assert response.read() == BODY


def test_bodies_are_slow_in_both_directions(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.inject(Fault(bytes_per_s=4 * len(BODY)))
    for method in ("GET", "PUT"):
        began = time.monotonic()
        client.request(method, "/", body=BODY if method == "PUT" else None)
        client.getresponse().read()
        assert time.monotonic() - began >= 0.24


def test_a_status_is_answered_and_the_server_hears_nothing(
    proxy: FaultProxy, client: http.client.HTTPConnection, server: ThreadingHTTPServer
) -> None:
    proxy.inject(Fault(methods=("PUT",), status=503, times=2))
    statuses = []
    for _ in range(3):
        client.request("PUT", "/x", body=b"abc")
        response = client.getresponse()
        response.read()
        statuses.append(response.status)
    assert statuses == [503, 503, 200]
    assert server.puts == ["/x"]  # type: ignore[attr-defined]


def test_cut_before_and_after_the_server_has_heard(
    proxy: FaultProxy, client: http.client.HTTPConnection, server: ThreadingHTTPServer
) -> None:
    for fault, heard in ((Fault(is_cut_before=True), []), (Fault(cut_after=-1), ["/x"])):
        proxy.inject(fault)
        client.request("PUT", "/x", body=b"abc")
        with pytest.raises((http.client.HTTPException, OSError)):
            client.getresponse()
        proxy.clear()
        client.close()
        assert server.puts == heard  # type: ignore[attr-defined]
    assert get(client) == BODY


def test_cut_in_the_body(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.inject(Fault(cut_after=300_000))
    client.request("GET", "/")
    with pytest.raises(http.client.IncompleteRead) as error:
        client.getresponse().read()
    assert error.value.partial == BODY[:300_000]


def test_truncated_and_corrupt_bodies_look_right(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    with proxy.injected(Fault(truncate=1_000)):
        assert get(client) == BODY[:-1_000]
    with proxy.injected(Fault(corrupt_at=500_001)):
        damaged = get(client)
    assert len(damaged) == len(BODY)
    assert [at for at in range(len(BODY)) if damaged[at] != BODY[at]] == [500_001]
    assert get(client) == BODY


def test_silence_lasts_until_the_client_or_the_proxy_gives_up(proxy: FaultProxy) -> None:
    proxy.inject(Fault(is_silent=True))
    client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=0.3)
    client.request("GET", "/")
    with pytest.raises(TimeoutError):
        client.getresponse()
    client.close()


def test_faults_choose_by_path(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.inject(Fault(path="/bad", status=500))
    assert get(client, "/good") == BODY
    client.request("GET", "/bad/1")
    response = client.getresponse()
    response.read()
    assert response.status == 500


def test_a_server_that_is_gone_ends_the_connection() -> None:
    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = listener.server_address[1]
    listener.server_close()
    proxy = FaultProxy(("127.0.0.1", port))
    client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    client.request("GET", "/")
    with pytest.raises((http.client.HTTPException, OSError)):
        client.getresponse()
    client.close()
    proxy.stop()


def test_many_connections_at_once(proxy: FaultProxy) -> None:
    wrong: list[int] = []

    def work(me: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        for _ in range(5):
            if get(client) != BODY:
                wrong.append(me)
        client.close()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(proxy.exchanges) == 40


def test_in_a_process_of_its_own(server: ThreadingHTTPServer) -> None:
    proxy = ProxyProcess(("127.0.0.1", server.server_address[1]), first_byte_ms=60)
    client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    began = time.monotonic()
    assert get(client) == BODY
    assert time.monotonic() - began >= 0.06
    client.close()
    pid = proxy._process.pid
    proxy.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
