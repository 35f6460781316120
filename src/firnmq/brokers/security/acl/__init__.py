"""What a client may do: rules in Kafka's form, their index, and the decisions made by them."""

from firnmq.brokers.security.acl.authorizer import Access, Authorizer
from firnmq.brokers.security.acl.model import (
    CLUSTER_NAME,
    RULES_MAX,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    RuleFilter,
)
from firnmq.brokers.security.acl.store import RuleStore

__all__ = [
    "CLUSTER_NAME",
    "RULES_MAX",
    "WILDCARD",
    "Access",
    "Authorizer",
    "Operation",
    "PatternType",
    "Permission",
    "ResourceType",
    "Rule",
    "RuleFilter",
    "RuleStore",
]
