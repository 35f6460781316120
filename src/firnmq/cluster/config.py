"""What a node's operator can set about the cluster that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firnmq.cluster.peers.certificates import Certificates
from firnmq.config import is_loopback
from firnmq.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Without `enabled` a node is alone, and nothing else of the section counts."""

    enabled: bool = False
    """Whether the node is one of a cluster. Its number is kafka.node_id."""
    meta_file: Path | None = None
    """The metadata of all nodes of one machine: a SQLite file outside their data directories.
    Nodes of several machines share etcd instead, which meta.endpoints names."""
    host: str = "127.0.0.1"
    """Address to listen on for other nodes. They prove that they know the cluster's secret, which
    is in the metadata; what they send is encrypted if there is a `ca_file`."""
    port: int = 0
    """0 takes any free port: other nodes read it from the metadata."""
    advertised_host: str | None = None
    """What other nodes are told to connect to; the listening address by default."""
    session_ttl_ms: int = 4_000
    """A node that was not heard of for so long is away: clients are told of no leader."""
    replication_factor: int = 3
    """Replicas of a new topic that does not say how many: so many where there are as many nodes,
    else 1."""
    ca_file: Path | None = None
    """PEM file of the authority that signs the certificates of all nodes; turns TLS on between
    them. All nodes need it, or none."""
    certificate_file: Path | None = None
    """PEM file of this node's certificate. It is shown by the node that connects and by the one
    that is connected to, so that it must be good for both. Files that were replaced are read again
    without a restart."""
    key_file: Path | None = None
    """PEM file of the certificate's key, without a password."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidArgument("cluster.port", f"must be 0 to 65,535, not {self.port:,}")
        if self.session_ttl_ms < 500:
            raise InvalidArgument("cluster.session_ttl_ms", "must be at least 500")
        if not 1 <= self.replication_factor <= 15:
            raise InvalidArgument("cluster.replication_factor", "must be 1 to 15")
        files = (self.ca_file, self.certificate_file, self.key_file)
        if None in files and any(files):
            text = "ca_file, certificate_file and key_file are given together or not"
            raise InvalidArgument("cluster.ca_file", text)

    @property
    def exposes(self) -> bool:
        """Whether hosts between the nodes can read what they send."""
        return self.enabled and self.ca_file is None and not is_loopback(self.host)

    def certificates(self) -> Certificates | None:
        """None without TLS; InvalidArgument if the files cannot be used."""
        if self.ca_file is None or self.certificate_file is None or self.key_file is None:
            return None
        return Certificates(self.ca_file, self.certificate_file, self.key_file)
