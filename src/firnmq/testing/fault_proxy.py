"""An HTTP proxy that injects faults before an object store: delays, broken connections, bad bytes.

It forwards requests to one server unchanged, so that signatures stay valid. Each `Fault` says which
requests it matches and what happens to them. As a program it is a proxy in its own process, for
measurements that must not share an interpreter with it::

    python -m firnmq.testing.fault_proxy 127.0.0.1:8333 --first-byte-ms 50
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from firnmq.errors import FirnError

_HEAD_BYTES_MAX = 64 * 1024
_COPY_BYTES = 256 * 1024
_STOP_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to requests of these methods whose path and query contain `path`.

    The first fault that matches a request applies, at most `times` times.
    """

    methods: tuple[str, ...] = ()
    path: str = ""
    times: int | None = None
    first_byte_ms: int = 0
    """The first byte of the answer is this much later."""
    bytes_per_s: int | None = None
    """Bodies in both directions go no faster."""
    status: int | None = None
    """The proxy answers with this status; the server never gets the request."""
    is_cut_before: bool = False
    """The connection ends before the server gets the request."""
    cut_after: int | None = None
    """The connection ends after so many bytes of the answer's body; -1 is before its head."""
    truncate: int = 0
    """The answer's body lacks so many bytes at its end, and its head says so: the object looks
    shorter than it is."""
    corrupt_at: int | None = None
    """One bit of the answer's body is flipped in this byte."""
    is_silent: bool = False
    """The answer never comes, until the proxy stops."""


class Exchange(NamedTuple):
    method: str
    path: str


class FaultProxy:
    """Listens on a free port of the loopback interface until `stop`; a thread per connection."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._faults: list[list[Fault | int]] = []
        self._open: set[socket.socket] = set()
        self._stopping = threading.Event()
        self.exchanges: list[Exchange] = []
        """Every request so far, in order of arrival."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, name="fault-proxy", daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def inject(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append([fault, 0])

    def clear(self) -> None:
        """From now on nothing happens to new requests."""
        with self._lock:
            self._faults.clear()

    @contextmanager
    def injected(self, fault: Fault) -> Iterator[None]:
        self.inject(fault)
        try:
            yield
        finally:
            self.clear()

    def stop(self) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                _end(each)
        for thread in self._threads:
            thread.join(_STOP_TIMEOUT_S)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            with self._lock:
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with self._tracked(client):
            try:
                reader = _Stream(client)
                while (head := reader.read_head()) is not None:
                    method, path = head.first_line.split(" ")[:2]
                    fault = self._next_fault(method, path)
                    if fault.is_cut_before:
                        return
                    if fault.status is not None:
                        reader.skip_body(head)
                        client.sendall(_answer(fault.status))
                        continue
                    if server is None:
                        server = socket.create_connection(self._target)
                        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        answers = _Stream(server)
                    with self._tracked(server, is_closed_after=False):
                        if not self._exchange(fault, head, reader, answers):
                            return
            except (OSError, _Broken):
                return  # Either side has gone; the other sees its connection end.
            finally:
                if server is not None:
                    _end(server)
                    server.close()

    def _exchange(self, fault: Fault, head: _Head, client: _Stream, server: _Stream) -> bool:
        """One request and its answer; whether the connection is still good."""
        began = time.monotonic()
        server.socket.sendall(head.raw)
        if head.expects_continue:  # The proxy says go on itself; the server's word is skipped.
            client.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        client.copy_body(head, server.socket, bytes_per_s=fault.bytes_per_s)
        answer = server.read_head()
        while answer is not None and answer.is_interim:
            answer = server.read_head()
        if answer is None:
            return False
        if fault.is_silent:
            self._stopping.wait()
            return False
        late_s = began + fault.first_byte_ms / 1000 - time.monotonic()
        if fault.first_byte_ms and late_s > 0 and self._stopping.wait(late_s):
            return False
        if fault.cut_after == -1:
            return False
        is_head = head.first_line.startswith("HEAD ")
        return _pass_on(fault, answer, server, client.socket, is_head=is_head)

    def _next_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            self.exchanges.append(Exchange(method, path))
            for entry in self._faults:
                fault, used = entry
                assert isinstance(fault, Fault)
                assert isinstance(used, int)
                is_met = (not fault.methods or method in fault.methods) and fault.path in path
                if is_met and (fault.times is None or used < fault.times):
                    entry[1] = used + 1
                    return fault
        return Fault()

    @contextmanager
    def _tracked(self, each: socket.socket, *, is_closed_after: bool = True) -> Iterator[None]:
        with self._lock:
            self._open.add(each)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(each)
            if is_closed_after:
                _end(each)
                each.close()


class ProxyProcess:
    """A FaultProxy with one lasting fault in a process of its own."""

    def __init__(self, target: tuple[str, int], *, first_byte_ms: int) -> None:
        module = [sys.executable, "-m", "firnmq.testing.fault_proxy"]
        options = ["--first-byte-ms", str(first_byte_ms)]
        self._process = subprocess.Popen(
            [*module, f"{target[0]}:{target[1]}", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise FirnError("the proxy did not start")
        self.port = int(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Its standard input ends, and so does it."""
        self._process.communicate(timeout=_STOP_TIMEOUT_S)


class _Broken(Exception):
    """The other side sent what is no HTTP, or stopped in the middle of it."""


class _Head:
    """The first line and the headers of a request or an answer."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.first_line, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        self.fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.is_interim = self.first_line.startswith("HTTP/1.1 1")
        self.is_chunked = "chunked" in self.fields.get("transfer-encoding", "")
        self.expects_continue = "100-continue" in self.fields.get("expect", "")
        self.length = int(self.fields.get("content-length", 0))

    def with_length(self, length: int) -> bytes:
        lines = self.raw.decode("latin-1").split("\r\n")
        kept = (
            f"Content-Length: {length}" if line.lower().startswith("content-length:") else line
            for line in lines
        )
        return "\r\n".join(kept).encode("latin-1")


class _Stream:
    """A socket that is read by heads and bodies."""

    def __init__(self, each: socket.socket) -> None:
        self.socket = each
        self._rest = b""
        self._buffer = bytearray(_COPY_BYTES)

    def read_head(self) -> _Head | None:
        """The next head; None where the connection ends in good order."""
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            more = self.socket.recv(_COPY_BYTES)
            if not more:
                return None
            self._rest += more
            if len(self._rest) > _HEAD_BYTES_MAX + _COPY_BYTES:
                raise _Broken
        raw, self._rest = self._rest[: end + 4], self._rest[end + 4 :]
        return _Head(raw)

    def body(self, head: _Head) -> Iterator[memoryview]:
        """The body as it is on the wire, in pieces that are valid until the next one."""
        if head.is_chunked:
            return self._chunked()
        return self._counted(head.length)

    def skip_body(self, head: _Head) -> None:
        for _ in self.body(head):
            pass

    def copy_body(self, head: _Head, to: socket.socket, *, bytes_per_s: int | None) -> None:
        for piece in _paced(self.body(head), bytes_per_s):
            to.sendall(piece)

    def _counted(self, left: int) -> Iterator[memoryview]:
        while left:
            if self._rest:
                piece = memoryview(self._rest)[:left]
                self._rest = self._rest[len(piece) :]
            else:
                count = self.socket.recv_into(self._buffer, min(left, _COPY_BYTES))
                if not count:
                    raise _Broken
                piece = memoryview(self._buffer)[:count]
            left -= len(piece)
            yield piece

    def _chunked(self) -> Iterator[memoryview]:
        while True:
            while (end := self._rest.find(b"\r\n")) < 0:
                more = self.socket.recv(_COPY_BYTES)
                if not more:
                    raise _Broken
                self._rest += more
            size = int(self._rest[:end].partition(b";")[0], 16)
            # The line, the chunk, and the empty line after it. The last chunk is empty; trailers
            # are not sent by the servers this stands before.
            yield from self._counted(end + 2 + size + 2)
            if size == 0:
                return


def _pass_on(
    fault: Fault,
    answer: _Head,
    server: _Stream,
    client: socket.socket,
    *,
    is_head: bool,
) -> bool:
    """The answer with what the fault does to it; whether the connection is still good."""
    status = answer.first_line.split(" ")[1]
    has_body = not is_head and status not in ("204", "304")
    if not has_body:
        client.sendall(answer.raw)
        return True
    length = answer.length
    raw = answer.raw
    if fault.truncate and not answer.is_chunked:
        length = max(0, length - fault.truncate)
        raw = answer.with_length(length)
    client.sendall(raw)
    position = 0
    for piece in _paced(server.body(answer), fault.bytes_per_s):
        piece = _damaged(piece, position, fault.corrupt_at)
        if not answer.is_chunked:
            piece = piece[: max(0, length - position)]
        if fault.cut_after is not None and position + len(piece) > fault.cut_after:
            client.sendall(piece[: fault.cut_after - position])
            return False
        client.sendall(piece)
        position += len(piece)
    return answer.fields.get("connection", "").lower() != "close"


def _damaged(piece: memoryview, position: int, at: int | None) -> memoryview:
    if at is None or not position <= at < position + len(piece):
        return piece
    changed = bytearray(piece)
    changed[at - position] ^= 1
    return memoryview(changed)


def _paced(pieces: Iterator[memoryview], bytes_per_s: int | None) -> Iterator[memoryview]:
    if bytes_per_s is None:
        yield from pieces
        return
    began = time.monotonic()
    step = max(1, bytes_per_s // 50)
    sent = 0
    for piece in pieces:
        for at in range(0, len(piece), step):
            part = piece[at : at + step]
            sent += len(part)
            late_s = began + sent / bytes_per_s - time.monotonic()
            if late_s > 0:
                time.sleep(late_s)
            yield part


def _answer(status: int) -> bytes:
    body = b"<Error><Code>InternalError</Code><Message>made by the proxy</Message></Error>"
    return (
        f"HTTP/1.1 {status} Made by the proxy\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _end(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has ended already.


def main() -> None:
    """Runs a proxy until standard input ends; writes its port to standard output."""
    parser = argparse.ArgumentParser(description="An HTTP proxy that delays answers.")
    parser.add_argument("target", help="HOST:PORT of the server")
    parser.add_argument("--first-byte-ms", type=int, default=0)
    arguments = parser.parse_args()
    host, _, port = arguments.target.rpartition(":")
    proxy = FaultProxy((host, int(port)))
    if arguments.first_byte_ms:
        proxy.inject(Fault(first_byte_ms=arguments.first_byte_ms))
    os.write(sys.stdout.fileno(), f"{proxy.port}\n".encode())
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
