"""Where clients reach this node: known only once the listener is open."""

from __future__ import annotations

import ipaddress

_IPV6_NETWORK_BITS = 64
"""Of an IPv6 address; the machines of one owner can use every address with the same ones."""


class Address:
    """The advertised address. Set once, before the first connection is accepted."""

    __slots__ = ("host", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


def client_network(host: str) -> str:
    """What counts as one client without authentication: an IPv4 address or an IPv6 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False))
