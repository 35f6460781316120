"""Limits and defaults of the Kafka broker. Every refusal concerns one client only."""

from __future__ import annotations

from dataclasses import dataclass, field

from firnmq.brokers.kafka.groups import GroupConfig
from firnmq.config import TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """What a node's operator can set about its Kafka listener."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback unless told otherwise."""
    port: int = 9092
    """0 takes any free port."""
    advertised_host: str | None = None
    """What clients are told to connect to; the listening address by default."""
    advertised_port: int | None = None
    node_id: int = 1
    cluster_id: str = "firn"
    frame_bytes_max: int = 100 * 1024 * 1024
    """A larger request closes the connection: its length is judged before memory is taken."""
    requests_in_flight_max: int = 64
    """Requests of one connection that wait or work; beyond it the socket is not read."""
    connections_max: int = 20_000
    idle_timeout_s: float = 600.0
    """A connection that sends nothing for so long is closed."""
    auto_create_topics: bool = True
    auto_create_shards: int = 1
    topic_defaults: TopicConfig = field(
        default_factory=lambda: TopicConfig(index_key=False, index_tag=False)
    )
    """Options of topics made by Kafka clients. Without key and tag index a produced batch is
    never decompressed; a client asks for them with index.key and index.tag."""
    groups: GroupConfig = field(default_factory=GroupConfig)
