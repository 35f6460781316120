"""Divides the process's file descriptors between segment files and connections.

Every connection and every open file is a descriptor. Storage that cannot open a file fails, so its
share is reserved first, and connections get the rest.
"""

from __future__ import annotations

import dataclasses
import resource
from dataclasses import dataclass

from firnmq.disk.ranges import MAPPINGS_MAX
from firnmq.server.settings import NodeConfig

_WANTED_MAX = 1 << 20
"""A process that may have more descriptors gets no more than this: nothing here needs them."""
_FIXED = MAPPINGS_MAX + 128
"""Descriptors besides segment files and connections: mappings of files that are being sent, 64 of
RocksDB, the metadata, listeners, logs, connections to the object store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorShares:
    """The shares of descriptors."""

    limit: int
    """The process's limit."""
    open_files: int
    kafka_connections: int
    http_connections: int


def raise_descriptor_limit() -> None:
    """Raises the soft limit to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_MAX if hard == resource.RLIM_INFINITY else min(hard, _WANTED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED_MAX if soft == resource.RLIM_INFINITY else soft


def share_out(limit: int, config: NodeConfig) -> DescriptorShares:
    """The shares of a process with `limit` descriptors: as configured, if that fits.

    Otherwise segment files get half of what remains after the fixed part.
    """
    http = min(config.admin.connections_max, limit // 8) if config.admin.enabled else 0
    left = limit - min(_FIXED, limit // 2) - http
    open_files = max(min(config.store.open_files, left // 2), 1)
    return DescriptorShares(
        limit=limit,
        open_files=open_files,
        kafka_connections=max(min(config.kafka.connections_max, left - open_files), 1),
        http_connections=http,
    )


def within(shares: DescriptorShares, config: NodeConfig) -> NodeConfig:
    """The configuration, limited to the shares.

    One address gets three quarters of the connections at most, so that others can connect.
    """
    kafka, admin = config.kafka, config.admin
    if shares.kafka_connections < kafka.connections_max:
        per_address = max(shares.kafka_connections * 3 // 4, 1)
        kafka = dataclasses.replace(
            kafka,
            connections_max=shares.kafka_connections,
            connections_per_address_max=min(kafka.connections_per_address_max, per_address),
        )
    if 0 < shares.http_connections < admin.connections_max:
        per_address = max(shares.http_connections * 3 // 4, 1)
        admin = dataclasses.replace(
            admin,
            connections_max=shares.http_connections,
            connections_per_address_max=min(admin.connections_per_address_max, per_address),
        )
    store = dataclasses.replace(config.store, open_files=shares.open_files)
    return dataclasses.replace(config, kafka=kafka, admin=admin, store=store)
