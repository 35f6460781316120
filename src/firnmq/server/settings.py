"""A node's configuration, from its file and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.groups import GroupConfig
from firnmq.brokers.kafka.transactions import TransactionConfig
from firnmq.cluster.config import ClusterConfig
from firnmq.config import (
    AdminConfig,
    LakeConfig,
    LogConfig,
    MetaConfig,
    NodeStoreConfig,
    SecurityConfig,
    Settings,
    StoreConfig,
    TieringConfig,
    TopicConfig,
    is_loopback,
)
from firnmq.config.sections import ENVIRONMENT_PREFIX
from firnmq.errors import InvalidArgument
from firnmq.server.meta_settings import read_meta_role_config

_SECTIONS = (
    *("store", "kafka", "groups", "transactions", "topic_defaults"),
    *("admin", "security", "log", "tiering", "lake", "meta", "cluster"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The sections of a node's configuration."""

    store: StoreConfig = field(default_factory=NodeStoreConfig)
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    """With `groups`, `transactions` and `topic_defaults`, which are separate sections."""
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    """Options of topics that `firn topic create` and the HTTP listener create: with indexes, as in
    a data directory that no node serves, unless the section says otherwise."""
    admin: AdminConfig = field(default_factory=AdminConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tiering: TieringConfig = field(default_factory=TieringConfig)
    lake: LakeConfig = field(default_factory=LakeConfig)
    meta: MetaConfig = field(default_factory=MetaConfig)
    """Where the metadata of a cluster is; a node that is alone has its own."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        cluster = self.cluster
        if not cluster.enabled:
            if self.meta.endpoints or cluster.meta_file is not None:
                text = "shared metadata is for nodes of a cluster; set cluster.enabled as well"
                raise InvalidArgument("cluster.enabled", text)
            return
        if bool(self.meta.endpoints) == (cluster.meta_file is not None):
            text = "a cluster needs either meta.endpoints or cluster.meta_file"
            raise InvalidArgument("cluster.meta_file", text)
        if self.kafka.node_id < 1:
            raise InvalidArgument("kafka.node_id", "must be above 0 in a cluster")

    def exposures(self) -> list[str]:
        """What unauthenticated clients could do, if anything; InvalidArgument unless allowed."""
        exposed = []
        if not is_loopback(self.kafka.host) and not self.security.is_complete:
            lacks = "TLS" if self.security.tls_certificate is None else "authentication"
            can = "read what is sent" if self.security.sasl_mechanisms else "read and write all"
            exposed.append(
                f"the Kafka listener on {self.kafka.host} has no {lacks}: any host that reaches it "
                f"can {can}"
            )
        if self.admin.enabled and not is_loopback(self.admin.host):
            has_token = self.admin.token_file is not None or self.security.identifies_clients
            can = "read the token that is sent" if has_token else "do everything"
            exposed.append(
                f"the HTTP listener on {self.admin.host} has no TLS: any host that reaches it can "
                f"{can}"
            )
        if self.cluster.exposes:
            exposed.append(
                f"the cluster listener on {self.cluster.host} has no TLS: any host between the "
                "nodes can read what they send"
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
    return _read(settings)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Unknown variables with our prefix, each with the most similar known one."""
    settings = Settings(environment={})
    _read(settings)
    read_meta_role_config(settings)
    known = settings.variables
    found: dict[str, str | None] = {}
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            closest = get_close_matches(name, known, n=1, cutoff=0.8)
            found[name] = closest[0] if closest else None
    return found


def _read(settings: Settings) -> NodeConfig:
    own = ("topic_defaults", "groups", "transactions")
    return NodeConfig(
        store=settings.section("store", NodeStoreConfig, prefix=""),
        kafka=settings.section(
            "kafka",
            KafkaConfig,
            prefix="KAFKA_",
            without=own,
            topic_defaults=_topic_defaults(settings, KafkaConfig().topic_defaults),
            groups=settings.section("groups", GroupConfig, prefix="GROUPS_"),
            transactions=settings.section(
                "transactions", TransactionConfig, prefix="TRANSACTIONS_"
            ),
        ),
        topic_defaults=_topic_defaults(settings, TopicConfig()),
        admin=settings.section("admin", AdminConfig, prefix="ADMIN_"),
        security=settings.section("security", SecurityConfig, prefix="SECURITY_"),
        log=settings.section("log", LogConfig, prefix="LOG_"),
        tiering=settings.section("tiering", TieringConfig, prefix="TIERING_"),
        lake=settings.section("lake", LakeConfig, prefix="LAKE_"),
        meta=settings.section("meta", MetaConfig, prefix="META_"),
        cluster=settings.section("cluster", ClusterConfig, prefix="CLUSTER_"),
    )


def _topic_defaults(settings: Settings, base: TopicConfig) -> TopicConfig:
    """The section's options over the built-in defaults of topics."""
    options = settings.options("topic_defaults", prefix="TOPIC_DEFAULTS_", known=base.options())
    defaults = base.with_options(options)
    defaults.check_new()
    return defaults
