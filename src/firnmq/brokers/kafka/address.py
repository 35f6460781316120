"""Where clients reach this node: known only once the listener is open."""

from __future__ import annotations


class Address:
    """The advertised address. Set once, before the first connection is accepted."""

    __slots__ = ("host", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
