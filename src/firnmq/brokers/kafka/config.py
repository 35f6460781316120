"""Limits and defaults of the Kafka broker. Every refusal concerns one client only."""

from __future__ import annotations

from dataclasses import dataclass, field

from firnmq.brokers.kafka.groups import GroupConfig
from firnmq.brokers.kafka.transactions.config import TransactionConfig
from firnmq.config import TopicConfig
from firnmq.errors import InvalidArgument

NODE_ID_MAX = 2**31 - 1
"""Numbers of nodes have 32 bits in Kafka's protocol."""


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
    """A larger request is refused: its length is judged before memory is taken."""
    requests_in_flight_max: int = 1_000
    """Requests of one connection that wait or work; beyond it the socket is not read."""
    bytes_in_flight_max: int = 64 * 1024 * 1024
    """Bytes of one connection's unanswered requests; beyond it the socket is not read, so at most
    one more frame is in memory."""
    total_bytes_in_flight_max: int = 1024 * 1024 * 1024
    """Bytes of all connections' unanswered requests. A large frame counts as it comes and waits
    until its next part fits; one at a time may go beyond the limit, so that it can end."""
    client_bytes_in_flight_max: int = 256 * 1024 * 1024
    """Bytes of the unanswered requests of one address and user, all connections together: a quarter
    of what all may hold, so that one client does not stop the others."""
    connections_max: int = 20_000
    connections_per_address_max: int = 2_000
    """Connections from one address, so that one machine that leaks them harms only itself."""
    handshake_timeout_s: float = 10.0
    """Seconds a client has to finish the TLS handshake, and then to authenticate."""
    handshake_frame_bytes_max: int = 64 * 1024
    """A larger request of a client that has not authenticated closes the connection."""
    idle_timeout_s: float = 600.0
    """A connection that sends nothing for so long is closed, as is one whose single request
    takes so long to arrive."""
    auto_create_topics: bool = True
    auto_create_shards: int = 1
    topic_defaults: TopicConfig = field(
        default_factory=lambda: TopicConfig(index_key=False, index_tag=False, expire_header=None)
    )
    """Options of topics made by Kafka clients. Without key index, tag index and expiry by header
    a produced batch is never decompressed; a client asks for them with index.key, index.tag and
    expire.header."""
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.node_id <= NODE_ID_MAX:
            raise InvalidArgument("node_id", f"must be 0 to {NODE_ID_MAX:,}, not {self.node_id:,}")
        for name in ("port", "advertised_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise InvalidArgument(name, f"must be 0 to 65,535, not {value:,}")
        for name in _ABOVE_ZERO:
            if getattr(self, name) <= 0:
                raise InvalidArgument(name, f"must be above 0, not {getattr(self, name)}")


_ABOVE_ZERO = (
    *("frame_bytes_max", "requests_in_flight_max", "bytes_in_flight_max"),
    *(
        "total_bytes_in_flight_max",
        "client_bytes_in_flight_max",
        "connections_max",
        "connections_per_address_max",
    ),
    *("handshake_timeout_s", "handshake_frame_bytes_max", "idle_timeout_s", "auto_create_shards"),
)
