"""A client that says exactly what a test wants, over TLS."""

from __future__ import annotations

import socket
import ssl

from firnmq.brokers.kafka.protocol import (
    Message,
    RequestHeader,
    decode_response,
    encode_request,
)
from tests.integration.admin.serving import Served
from tests.integration.security.conftest import Authority

TIMEOUT_S = 60


class Wire:
    """One connection. An answer of None means that the node has closed it."""

    def __init__(
        self, node: Served, authority: Authority | None, context: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = node.kafka.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        if authority is not None:
            if context is None:
                context = ssl.create_default_context(cafile=str(authority.certificate))
            self._socket = context.wrap_socket(self._socket, server_hostname=host)

    def ask(self, api_key: int, version: int, request: Message) -> Message | None:
        header = RequestHeader(
            api_key=api_key, api_version=version, correlation_id=7, client_id="wire"
        )
        parts = encode_request(header, request)
        try:
            self.send(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
        except ConnectionError:
            return None
        frame = self.frame()
        return None if frame is None else decode_response(api_key, version, frame)[1]

    def send(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def frame(self) -> bytes | None:
        size = self._exactly(4)
        return None if size is None else self._exactly(int.from_bytes(size, "big"))

    def is_closed(self) -> bool:
        """Waits until the node has closed the connection, and says so."""
        return self.frame() is None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self._socket.recv(size - len(data))
            except (ConnectionError, ssl.SSLError):
                return None
            if not more:
                return None
            data += more
        return data
