"""Where the metadata of a node is kept, and the member of etcd that a process runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from firnmq.errors import InvalidArgument

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PORT_MAX = 65_535
_GIB = 1024**3
_ANY = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaConfig:
    """The meta store: etcd, or SQLite in the data directory.

    The password is better given as FIRN_META_PASSWORD or in a file of its own.
    """

    endpoints: tuple[str, ...] = ()
    """`host:port` of each member of etcd; some may be down as long as a majority is not. None:
    SQLite in the data directory."""
    cluster: str = "firn"
    """The name with which keys in etcd begin, so that several clusters can share one etcd."""
    ca_file: Path | None = None
    """PEM file of the authority that signed etcd's certificates; turns TLS on."""
    certificate_file: Path | None = None
    """PEM file with the certificate to show to etcd, if it asks for one."""
    key_file: Path | None = None
    """PEM file with that certificate's key."""
    user: str = ""
    """User of etcd, if it has authentication enabled."""
    password: str = field(default="", repr=False)
    """The user's password."""
    password_file: Path | None = None
    """A file whose first line is the password."""
    call_timeout_ms: int = 5_000
    """How long a member that answers is looked for, and then how long a call may take. etcd elects
    a new leader in one to two seconds."""
    start_timeout_ms: int = 60_000
    """How long a starting process waits for etcd, which may be starting as well."""

    def __post_init__(self) -> None:
        for endpoint in self.endpoints:
            check_address("meta.endpoints", endpoint)
        if len(set(self.endpoints)) < len(self.endpoints):
            raise InvalidArgument("meta.endpoints", "names a member twice")
        if not _NAME.fullmatch(self.cluster):
            raise InvalidArgument("meta.cluster", f"{self.cluster!r} is not 1 to 64 letters")
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgument("meta.certificate_file", "and key_file are given together or not")
        if self.certificate_file is not None and self.ca_file is None:
            raise InvalidArgument("meta.certificate_file", "needs ca_file as well")
        if self.password and self.password_file is not None:
            raise InvalidArgument("meta.password_file", "and password are not given together")
        has_password = bool(self.password) or self.password_file is not None
        if has_password != bool(self.user):
            raise InvalidArgument("meta.user", "and a password are given together or not")
        for name in ("call_timeout_ms", "start_timeout_ms"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"meta.{name}", "must be above 0")

    def secret(self) -> str:
        """The password, read from its file if it has one."""
        if self.password_file is None:
            return self.password
        try:
            lines = self.password_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            text = f"{self.password_file} cannot be read: {error}"
            raise InvalidArgument("meta.password_file", text) from error
        if not lines or not lines[0]:
            raise InvalidArgument("meta.password_file", f"{self.password_file} has no password")
        return lines[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """The member of etcd that `firn serve --role meta` runs beside itself."""

    enabled: bool = True
    """Whether to run one. Without it, `meta.endpoints` names the members."""
    name: str = "m1"
    """This member's name among `peers`."""
    peers: tuple[str, ...] = ()
    """`name=host:port` of all members, this one included: where they reach each other. None: this
    member is the only one."""
    is_joining: bool = False
    """Whether the member joins a cluster that runs already (`etcdctl member add` comes before).
    Only the first start of an empty directory asks."""
    host: str = "127.0.0.1"
    """Address to listen on, for clients and for peers."""
    client_port: int = 2379
    peer_port: int = 2380
    """Of the listener; `peers` say how the others reach it."""
    advertised_host: str | None = None
    """Address at which clients reach this member, if not `host`."""
    ca_file: Path | None = None
    """PEM file of the authority that signs all members' certificates; turns TLS on. Peers, and
    clients of members, must then show a certificate of it."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    program: Path | None = None
    """The etcd to run. None: var/etcd/etcd of the checkout, which `make etcd` builds, or else the
    one in PATH."""
    quota_bytes: int = 2 * _GIB
    """Size of its database above which etcd refuses writes."""
    revisions_kept: int = 10_000
    """A watcher that is further behind reads everything again."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument("etcd.name", f"{self.name!r} is not 1 to 64 of A-Za-z0-9._-")
        names = []
        for peer in self.peers:
            name, equals, address = peer.partition("=")
            if not equals or not _NAME.fullmatch(name):
                raise InvalidArgument("etcd.peers", f"{peer!r} is not of the form name=host:port")
            check_address("etcd.peers", address)
            names.append(name)
        if len(set(names)) < len(names):
            raise InvalidArgument("etcd.peers", "names a member twice")
        if names and self.name not in names:
            raise InvalidArgument("etcd.peers", f"lacks this member, {self.name!r}")
        if not names and self.is_joining:
            raise InvalidArgument("etcd.is_joining", "needs peers as well")
        if self.host in _ANY and (self.advertised_host is None or not names):
            raise InvalidArgument(
                "etcd.host", f"{self.host} is no address to connect to: set advertised_host, peers"
            )
        files = (self.ca_file, self.certificate_file, self.key_file)
        if None in files and any(files):
            raise InvalidArgument(
                "etcd.ca_file", "certificate_file and key_file are given together or not"
            )
        for field_name in ("client_port", "peer_port"):
            if not 1 <= getattr(self, field_name) <= _PORT_MAX:
                raise InvalidArgument(f"etcd.{field_name}", f"must be 1 to {_PORT_MAX:,}")
        if self.quota_bytes < 16 * 1024 * 1024:
            raise InvalidArgument("etcd.quota_bytes", "must be at least 16 MiB")
        if self.revisions_kept < 1:
            raise InvalidArgument("etcd.revisions_kept", "must be above 0")

    @property
    def client_endpoint(self) -> str:
        """`host:port` at which clients reach the member."""
        return f"{_bracketed(self.advertised_host or self.host)}:{self.client_port}"

    @property
    def listen_host(self) -> str:
        """`host` as it stands in an address."""
        return _bracketed(self.host)

    @property
    def peer_endpoint(self) -> str:
        """`host:port` at which the other members reach this one."""
        for peer in self.peers:
            name, _, address = peer.partition("=")
            if name == self.name:
                return address
        return f"{self.listen_host}:{self.peer_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaServiceConfig:
    """The gRPC listener of the meta service, in role meta."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 9645
    name: str | None = None
    """What this process is called as controller. None: its host and port."""
    ca_file: Path | None = None
    """PEM file of the authority that signs the certificates of clients; with the next two, the
    listener uses TLS and serves only clients with a certificate."""
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.port <= _PORT_MAX:
            raise InvalidArgument("service.port", f"must be 1 to {_PORT_MAX:,}, not {self.port}")
        files = (self.ca_file, self.certificate_file, self.key_file)
        if None in files and any(files):
            raise InvalidArgument(
                "service.ca_file", "certificate_file and key_file are given together or not"
            )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def check_address(setting: str, text: str) -> None:
    """InvalidArgument unless the text is `host:port`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= _PORT_MAX:
        hint = "; leave out what is before the host" if "://" in text else ""
        raise InvalidArgument(setting, f"{text!r} is not of the form host:port{hint}")
