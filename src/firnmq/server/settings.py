"""Everything a node can be told, from its file and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.groups import GroupConfig
from firnmq.brokers.kafka.transactions import TransactionConfig
from firnmq.config import (
    AdminConfig,
    LakeConfig,
    LogConfig,
    SecurityConfig,
    Settings,
    StoreConfig,
    TieringConfig,
    TopicConfig,
    is_loopback,
)
from firnmq.errors import InvalidArgument

_SECTIONS = (
    *("store", "kafka", "groups", "transactions", "topic_defaults"),
    *("admin", "security", "log", "tiering", "lake"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The sections of a node's configuration."""

    store: StoreConfig = field(default_factory=StoreConfig)
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    """With `groups`, `transactions` and `topic_defaults`, which are sections of their own."""
    admin: AdminConfig = field(default_factory=AdminConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tiering: TieringConfig = field(default_factory=TieringConfig)
    lake: LakeConfig = field(default_factory=LakeConfig)

    def exposures(self) -> list[str]:
        """What strangers could do, if anything; InvalidArgument unless that is allowed."""
        exposed = []
        if not is_loopback(self.kafka.host) and not self.security.is_complete:
            lacks = "TLS" if self.security.tls_certificate is None else "authentication"
            exposed.append(
                f"the Kafka listener on {self.kafka.host} has no {lacks}: whoever reaches it can "
                + ("read what is sent" if self.security.sasl_mechanisms else "read and write all")
            )
        if self.admin.enabled and not is_loopback(self.admin.host):
            can = "read the token that is sent" if self.admin.token_file else "do everything"
            exposed.append(
                f"the HTTP listener on {self.admin.host} has no TLS: whoever reaches it can {can}"
            )
        if exposed and not self.security.allow_insecure:
            raise InvalidArgument("security", f"{exposed[0]}; --allow-insecure if that is meant")
        return exposed


def load_node_config(
    path: Path | None = None, environment: Mapping[str, str] | None = None
) -> NodeConfig:
    """Defaults, overlaid by the file, overlaid by variables such as FIRN_KAFKA_PORT."""
    settings = Settings(path, environment)
    settings.refuse_unknown(_SECTIONS)
    own = ("topic_defaults", "groups", "transactions")
    return NodeConfig(
        store=settings.section("store", StoreConfig, prefix=""),
        kafka=settings.section(
            "kafka",
            KafkaConfig,
            prefix="KAFKA_",
            without=own,
            topic_defaults=_topic_defaults(settings),
            groups=settings.section("groups", GroupConfig, prefix="GROUPS_"),
            transactions=settings.section(
                "transactions", TransactionConfig, prefix="TRANSACTIONS_"
            ),
        ),
        admin=settings.section("admin", AdminConfig, prefix="ADMIN_"),
        security=settings.section("security", SecurityConfig, prefix="SECURITY_"),
        log=settings.section("log", LogConfig, prefix="LOG_"),
        tiering=settings.section("tiering", TieringConfig, prefix="TIERING_"),
        lake=settings.section("lake", LakeConfig, prefix="LAKE_"),
    )


def _topic_defaults(settings: Settings) -> TopicConfig:
    base = KafkaConfig().topic_defaults
    options = settings.options("topic_defaults", prefix="TOPIC_DEFAULTS_", known=base.options())
    defaults = base.with_options(options)
    defaults.check_new()
    return defaults
