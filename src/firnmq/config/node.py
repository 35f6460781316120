"""A node's configuration besides its store and its topics: HTTP, security, logs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from firnmq.errors import InvalidArgument

_SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_LEVELS = ("debug", "info", "warning", "error")


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the host: `localhost` or an address of the
    loopback network. A name such as `127.example.org` is no address: its owner chooses the target.
    """
    if host.lower() == "localhost":
        return True
    address = parsed_address(host)
    return address is not None and address.is_loopback


def parsed_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The host as an address; None if it is a name. An IPv4 address in IPv6 form is IPv4."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The HTTP listener: administration, metrics, health."""

    enabled: bool = True
    host: str = "127.0.0.1"
    """Address to listen on; loopback by default, since every client that reaches it may do
    everything."""
    port: int = 9644
    """0 takes any free port."""
    host_names: tuple[str, ...] = ()
    """Names, besides addresses, that clients may call a listener without token by: a web page
    reaches a listener under a name of the page's owner (DNS rebinding), and is refused by it."""
    token_file: Path | None = None
    """A file with a secret of one line; requests must then carry it as a bearer token. Without
    the file, a node whose Kafka clients must authenticate makes a token in its data directory."""
    tokens_file: Path | None = None
    """A file with tokens that may do less, one on each line: a name, a role (`read`, `operate` or
    `administer`), and the token, separated by spaces. It is read at the start."""
    connections_max: int = 256
    """Connections, and requests under way. Beyond it a connection that waits for its next request
    is closed for a new one; if there is none, new ones may ask for health only."""
    connections_per_address_max: int = 128
    """The same for one client's address, so that one machine that leaks them leaves room."""
    header_timeout_s: float = 10.0
    """Seconds that a request's header may take, from the connection or its first byte on."""
    body_timeout_s: float = 30.0
    """Seconds that a request's body may take: at the largest size, a megabyte per second."""
    body_bytes_max: int = 32 * 1024 * 1024
    """A larger request is refused before it is read."""
    body_bytes_total_max: int = 128 * 1024 * 1024
    """Bytes of the bodies of all requests under way; what goes beyond it is refused (503). The
    bodies of one address take half of it at most, or one body if that is more."""
    metrics_series_max: int = 10_000
    """Groups times shards, and topics, that /metrics shows at most: a scrape must stay short."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidArgument("admin.port", f"must be 0 to 65,535, not {self.port:,}")
        if self.metrics_series_max < 0:
            raise InvalidArgument("admin.metrics_series_max", "must not be below 0")
        for name in _ABOVE_ZERO:
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"admin.{name}", "must be above 0")


_ABOVE_ZERO = (
    *("connections_max", "connections_per_address_max", "header_timeout_s", "body_timeout_s"),
    *("body_bytes_max", "body_bytes_total_max"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Who may talk to the Kafka listener, and whether others can listen."""

    tls_certificate: Path | None = None
    """PEM file with the certificate and those that sign it; turns TLS on."""
    tls_key: Path | None = None
    """PEM file with the key, if it is not in the certificate's file."""
    tls_client_ca: Path | None = None
    """PEM file of the authority whose certificates clients must show."""
    sasl_mechanisms: tuple[str, ...] = ()
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; clients must authenticate if there is any."""
    authorization: bool = False
    """Clients may do only what a rule allows them, and super users everything; otherwise all may do
    everything."""
    super_users: tuple[str, ...] = ()
    """Principals, such as `User:admin`, that may do everything: there must be one that makes the
    first rules."""
    certificate_names: str = "DEFAULT"
    """How a client's certificate becomes a user's name, in the form of Kafka's
    ssl.principal.mapping.rules: `RULE:^CN=([^,]+),.*$/$1/L,DEFAULT`."""
    allow_insecure: bool = False
    """Listen beyond this machine although there is no TLS, or no authentication."""

    def __post_init__(self) -> None:
        for mechanism in self.sasl_mechanisms:
            if mechanism not in _SASL_MECHANISMS:
                known = ", ".join(_SASL_MECHANISMS)
                raise InvalidArgument("sasl_mechanisms", f"{mechanism!r} is unknown; use {known}")
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                raise InvalidArgument(name, "needs tls_certificate as well")
        for principal in self.super_users:
            kind, _, name = principal.partition(":")
            if not kind or not name:
                raise InvalidArgument("super_users", f"{principal!r} is not written as User:name")

    @property
    def is_complete(self) -> bool:
        """Whether the Kafka listener can be shown to strangers."""
        return self.tls_certificate is not None and self.identifies_clients

    @property
    def identifies_clients(self) -> bool:
        """Whether Kafka clients must say who they are."""
        return bool(self.sasl_mechanisms) or self.tls_client_ca is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Logs of a node, on standard error."""

    json: bool = False
    """One JSON document per line instead of text."""
    level: str = "info"

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise InvalidArgument("log.level", f"{self.level!r} is not one of {', '.join(_LEVELS)}")
