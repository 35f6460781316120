"""What a node's operator can set about the cluster that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
    is in the metadata, but what they send is not encrypted."""
    port: int = 0
    """0 takes any free port: other nodes read it from the metadata."""
    advertised_host: str | None = None
    """What other nodes are told to connect to; the listening address by default."""
    session_ttl_ms: int = 4_000
    """A node that was not heard of for so long is away: clients are told of no leader."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidArgument("cluster.port", f"must be 0 to 65,535, not {self.port:,}")
        if self.session_ttl_ms < 500:
            raise InvalidArgument("cluster.session_ttl_ms", "must be at least 500")
