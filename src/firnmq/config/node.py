"""What a node can be told besides its store and its topics: HTTP, security, logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firnmq.errors import InvalidArgument

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
_LEVELS = ("debug", "info", "warning", "error")


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the address."""
    return host in _LOOPBACK or host.startswith("127.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The HTTP listener: administration, metrics, health."""

    enabled: bool = True
    host: str = "127.0.0.1"
    """Address to listen on; loopback unless told otherwise, since whoever reaches it may do
    everything."""
    port: int = 9644
    """0 takes any free port."""
    token_file: Path | None = None
    """A file with a secret of one line; requests must then carry it as a bearer token."""
    body_bytes_max: int = 32 * 1024 * 1024
    """A larger request is refused before it is read."""
    metrics_series_max: int = 10_000
    """Groups times shards, and topics, that /metrics shows at most: a scrape must stay short."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidArgument("admin.port", f"must be 0 to 65,535, not {self.port:,}")
        if self.body_bytes_max < 1 or self.metrics_series_max < 0:
            raise InvalidArgument("admin", "limits must be above 0")


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
    """PLAIN, SCRAM-SHA-256 or both; clients must authenticate if there is any."""
    allow_insecure: bool = False
    """Listen beyond this machine although there is no TLS, or no authentication."""

    def __post_init__(self) -> None:
        for mechanism in self.sasl_mechanisms:
            if mechanism not in _SASL_MECHANISMS:
                known = " and ".join(_SASL_MECHANISMS)
                raise InvalidArgument("sasl_mechanisms", f"{mechanism!r} is unknown; use {known}")
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                raise InvalidArgument(name, "needs tls_certificate as well")

    @property
    def is_complete(self) -> bool:
        """Whether the Kafka listener can be shown to strangers."""
        has_identity = bool(self.sasl_mechanisms) or self.tls_client_ca is not None
        return self.tls_certificate is not None and has_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Logs of a node, on standard error."""

    json: bool = False
    """One JSON document per line instead of text."""
    level: str = "info"

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise InvalidArgument("log.level", f"{self.level!r} is not one of {', '.join(_LEVELS)}")
