"""What the HTTP listener works on."""

from __future__ import annotations

from dataclasses import dataclass

from firnmq.brokers.kafka.broker import KafkaBroker
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.security import UserStore
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.server.local import LocalStore
from firnmq.server.settings import NodeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The parts of a running node."""

    config: NodeConfig
    local: LocalStore
    storage: KafkaStorage
    broker: KafkaBroker
    coordinator: GroupCoordinator
    offsets: GroupOffsets
    users: UserStore
    started_ms: int
