"""Requests as bytes, for what no client would send."""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

from firnmq.brokers.kafka.protocol import (
    ApiKey,
    Message,
    RequestHeader,
    decode_response,
    encode_request,
)

PRODUCE, METADATA, API_VERSIONS = 0, 3, 18
TIMEOUT_S = 60


def request(api_key: int, version: int, correlation_id: int, body: bytes = b"") -> bytes:
    """A frame with a header of version 1."""
    client_id = b"wire"
    payload = struct.pack(">hhih", api_key, version, correlation_id, len(client_id))
    payload += client_id + body
    return struct.pack(">i", len(payload)) + payload


def metadata_request(correlation_id: int, topic: str | None = None) -> bytes:
    """Asks about a topic, which makes it, or about all."""
    if topic is None:
        return request(METADATA, 1, correlation_id, struct.pack(">i", -1))
    name = topic.encode()
    return request(METADATA, 1, correlation_id, struct.pack(">ih", 1, len(name)) + name)


class Wire:
    """One connection. A context manager."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_some(self, data: bytes) -> int:
        """Sends what fits without waiting."""
        self._socket.setblocking(False)
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        finally:
            self._socket.settimeout(TIMEOUT_S)

    def ask(self, api_key: ApiKey, version: int, message: Message) -> Any:
        """The answer to a message."""
        self.begin(api_key, version, message)
        return self.end(api_key, version)

    def end(self, api_key: ApiKey, version: int) -> Any:
        """The answer to the message that was sent with `begin`."""
        return decode_response(api_key, version, self.receive())[1]

    def begin(self, api_key: ApiKey, version: int, message: Message) -> None:
        header = RequestHeader(
            api_key=api_key, api_version=version, correlation_id=7, client_id="wire"
        )
        self.send(b"".join(bytes(part) for part in encode_request(header, message)))  # type: ignore[arg-type]

    def receive(self) -> bytes:
        """The next response without its length; empty if the node has closed the connection."""
        head = self._exactly(4)
        return self._exactly(int.from_bytes(head, "big")) if head else b""

    def is_closed_by_peer(self) -> bool:
        """Waits for the end of the connection."""
        try:
            while data := self._socket.recv(65536):
                assert data
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self._socket.recv(count - len(data))
            except ConnectionError:
                return b""
            if not more:
                return b""
            data += more
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
