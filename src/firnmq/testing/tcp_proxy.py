"""A TCP proxy that passes bytes on late, holds them back, or breaks connections.

Unlike `fault_proxy` it knows no protocol, so it also stands before servers that speak HTTP/2.
"""

from __future__ import annotations

import queue
import socket
import threading
import time

_PIECE_BYTES = 64 * 1024
_PIECES_QUEUED = 1_000


class TcpProxy:
    """Listens on a free port of the loopback interface until `stop`; four threads a connection."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.delay_s = 0.0
        """Bytes of the server that arrive from now on are passed on this much later."""
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_stopping = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="tcp-proxy", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Nothing passes from now on, and no connection is broken: a network partition."""
        self._may_pass.clear()

    def release(self) -> None:
        self._may_pass.set()

    def break_all(self) -> None:
        """Breaks all connections; new ones are served."""
        with self._lock:
            for each in self._open:
                _end(each)

    def stop(self) -> None:
        self._is_stopping = True
        self._may_pass.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_all()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
                if self._is_stopping:
                    _end(client)
                    _end(server)
            for source, sink, is_late in ((client, server, False), (server, client, True)):
                pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(_PIECES_QUEUED)
                for does, arguments in (
                    (self._read, (source, pieces, is_late)),
                    (self._write, (sink, pieces)),
                ):
                    threading.Thread(target=does, args=arguments, daemon=True).start()

    def _read(
        self, source: socket.socket, pieces: queue.Queue[tuple[float, bytes]], is_late: bool
    ) -> None:
        data = b" "
        while data:
            try:
                data = source.recv(_PIECE_BYTES)
            except OSError:
                data = b""
            due = time.monotonic() + (self.delay_s if is_late and data else 0.0)
            pieces.put((due, data))

    def _write(self, sink: socket.socket, pieces: queue.Queue[tuple[float, bytes]]) -> None:
        data = b" "
        while data:
            due, data = pieces.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            self._may_pass.wait()
            try:
                sink.sendall(data)
            except OSError:
                break
        _end(sink)
        while data:  # So that the reader never waits for room.
            _, data = pieces.get()
        with self._lock:
            self._open.discard(sink)
        sink.close()


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has ended already.
