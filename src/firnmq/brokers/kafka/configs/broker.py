"""What clients that describe a broker are told: Kafka's names for the settings of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.configs.keys import LONG_MAX, ConfigKey, ConfigType
from firnmq.brokers.kafka.configs.topic import kafka_view
from firnmq.brokers.kafka.configs.topic_keys import KEPT, OURS
from firnmq.brokers.net.address import Address

LOG_DIRS: Final = "log.dirs"
"""The name under which the node tells its data directory."""
REPLICATION_FACTOR: Final = "default.replication.factor"
"""The name under which a node of a cluster tells how many replicas new topics have."""
_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _LIST = ConfigType.LONG, ConfigType.LIST
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000


class BrokerConfig(NamedTuple):
    """A setting as it is, and as it is without the operator's choice."""

    key: ConfigKey
    value: str
    default: str


def broker_configs(
    config: KafkaConfig, address: Address, shown: Mapping[str, str]
) -> dict[str, BrokerConfig]:
    """By Kafka's name. `shown` has what the Kafka listener does not know of the node."""
    builtin = KafkaConfig()
    values, defaults = _values(config), _values(builtin)
    here = {"advertised.listeners": f"{address.host}:{address.port}", **shown}
    found = {name: (kind, value, defaults[name][1]) for name, (kind, value) in values.items()}
    for name, value in here.items():
        kind, _, default = found.get(name, (_STRING, "", ""))
        found[name] = (kind, value, default)
    configs = {
        name: BrokerConfig(
            ConfigKey(name=name, type=kind, documentation=_DOCUMENTATION.get(name, "")),
            value,
            default,
        )
        for name, (kind, value, default) in found.items()
    }
    configs |= _topic_defaults(config, builtin)
    return dict(sorted(configs.items()))


def _topic_defaults(config: KafkaConfig, builtin: KafkaConfig) -> dict[str, BrokerConfig]:
    """The configs of the broker that new topics get theirs from."""
    given, without = kafka_view(config.topic_defaults), kafka_view(builtin.topic_defaults)
    found = {}
    for key in (*OURS.values(), *KEPT.values()):
        if key.broker_name is not None:
            text = f"For new topics. {key.documentation}"
            named = ConfigKey(name=key.broker_name, type=key.type, documentation=text)
            found[key.broker_name] = BrokerConfig(named, given[key.name], without[key.name])
    return found


def _values(config: KafkaConfig) -> dict[str, tuple[ConfigType, str]]:
    groups, transactions = config.groups, config.transactions
    retention_ms = config.topic_defaults.retention_ms
    segment_ms = config.topic_defaults.segment_ms
    return {
        "auto.create.topics.enable": (_BOOLEAN, str(config.auto_create_topics).lower()),
        "broker.id": (_INT, str(config.node_id)),
        "connections.max.idle.ms": (_LONG, str(int(config.idle_timeout_s * 1000))),
        REPLICATION_FACTOR: (_INT, "1"),
        "delete.topic.enable": (_BOOLEAN, "true"),
        "group.initial.rebalance.delay.ms": (_INT, str(groups.initial_rebalance_delay_ms)),
        "group.max.session.timeout.ms": (_INT, str(groups.session_timeout_max_ms)),
        "group.max.size": (_INT, str(groups.member_count_max)),
        "group.min.session.timeout.ms": (_INT, str(groups.session_timeout_min_ms)),
        "log.cleaner.enable": (_BOOLEAN, "true"),
        "log.retention.hours": (
            _INT,
            str(-1 if retention_ms is None else retention_ms // _HOUR_MS),
        ),
        "log.roll.hours": (
            _INT,
            str((LONG_MAX if segment_ms is None else segment_ms) // _HOUR_MS),
        ),
        "max.connections": (_INT, str(config.connections_max)),
        "max.connections.per.ip": (_INT, str(config.connections_per_address_max)),
        "node.id": (_INT, str(config.node_id)),
        "num.partitions": (_INT, str(config.auto_create_shards)),
        "offsets.retention.check.interval.ms": (_LONG, str(groups.offsets_retention_check_ms)),
        "offsets.retention.minutes": (_INT, str(groups.offsets_retention_ms // _MINUTE_MS)),
        "process.roles": (_LIST, "broker,controller"),
        "socket.request.max.bytes": (_INT, str(config.frame_bytes_max)),
        "transaction.max.timeout.ms": (_INT, str(transactions.timeout_max_ms)),
        "transactional.id.expiration.ms": (_INT, str(transactions.id_expiration_ms)),
    }


_DOCUMENTATION: Final = {
    "advertised.listeners": "Where clients are told to connect to.",
    "auto.create.topics.enable": "Whether a topic is made when a client first asks for it.",
    "broker.id": "The node's number.",
    "connections.max.idle.ms": "A connection that sends nothing for so long is closed.",
    REPLICATION_FACTOR: "Copies of a new topic's partitions, where there are so many nodes.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "group.initial.rebalance.delay.ms": "How long a new group waits for more members.",
    "group.max.session.timeout.ms": "The longest session time-out a consumer may ask for.",
    "group.max.size": "Members that a group may have.",
    "group.min.session.timeout.ms": "The shortest session time-out a consumer may ask for.",
    "log.dirs": "The node's data directory.",
    "log.retention.hours": "For new topics, retention.ms in hours; -1 is no limit.",
    "log.roll.hours": "For new topics, segment.ms in hours.",
    "max.connections": "Connections that the node takes.",
    "max.connections.per.ip": "Connections that the node takes from one address.",
    "node.id": "The node's number.",
    "num.partitions": "Partitions of a topic that is made without a number of them.",
    "offsets.retention.check.interval.ms": "Time between searches for offsets to forget.",
    "offsets.retention.minutes": "How long the offsets of a group without members are kept.",
    "socket.request.max.bytes": "The largest request that the node takes.",
    "transaction.max.timeout.ms": "The longest time-out a transactional producer may ask for.",
    "transactional.id.expiration.ms": "How long an unused transactional id is kept.",
}
