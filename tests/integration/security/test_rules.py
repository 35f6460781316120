"""Rules made with real clients, and what real clients may then do, before and after a restart."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import kafka.admin
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, ResourcePattern
from kafka.admin import ACLOperation as PythonOperation
from kafka.admin import ACLPermissionType as PythonPermission
from kafka.admin import ResourceType as PythonType

from firnmq.brokers.kafka.protocol import ApiKey
from firnmq.brokers.kafka.protocol.messages.metadata import MetadataRequest
from firnmq.brokers.security import UserStore
from firnmq.server.local import LocalStore
from tests.integration.admin.serving import Served, firn
from tests.integration.security.conftest import Authority, Identity, tls_settings
from tests.integration.security.wire import Wire

ROOT, ANN, BOB = "root", "ann", "bob"
TIMEOUT_S = 60
ON = {
    "FIRN_SECURITY_AUTHORIZATION": "true",
    "FIRN_SECURITY_SUPER_USERS": "User:root",
    "FIRN_GROUPS_INITIAL_REBALANCE_DELAY_MS": "0",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store = LocalStore(tmp_path / "data", background=False)
    for name in (ROOT, ANN, BOB):
        UserStore(store.kv).put(name, name)
    store.close()
    return tmp_path / "data"


@pytest.fixture
def node(data: Path) -> Iterator[Served]:
    served = started(data)
    yield served
    served.stop()


def started(data: Path) -> Served:
    return Served(data, settings={**ON, "FIRN_SECURITY_SASL_MECHANISMS": "PLAIN"})


def as_(node: Served, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": user,
    }


def binding(
    kind: ResourceType,
    name: str,
    user: str,
    operation: AclOperation,
    *,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def done(futures: dict[Any, Future[Any]]) -> list[Any]:
    return [future.result(TIMEOUT_S) for future in futures.values()]


def allow(node: Served, *bindings: AclBinding) -> None:
    root = AdminClient(as_(node, ROOT))  # Its futures end with it.
    done(root.create_acls(list(bindings)))


ANY = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


def produced(node: Served, user: str, topic: str, timeout_ms: int = 20_000) -> KafkaError | None:
    results: list[KafkaError | None] = []
    producer = Producer({**as_(node, user), "message.timeout.ms": timeout_ms})
    producer.produce(topic, b"v", on_delivery=lambda error, _: results.append(error))
    producer.flush(TIMEOUT_S)
    (error,) = results
    return error


def test_what_a_client_may_do_and_what_not(node: Served, data: Path) -> None:
    root = AdminClient(as_(node, ROOT))
    done(root.create_topics([NewTopic("orders", 1), NewTopic("secret", 1)]))

    # 1. Without a rule a client sees no topic, and may not write.
    ann = AdminClient(as_(node, ANN))
    assert ann.list_topics(timeout=TIMEOUT_S).topics == {}
    error = produced(node, ANN, "orders")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as refused:
        done(ann.create_acls([binding(ResourceType.TOPIC, "o", ANN, AclOperation.ALL)]))
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED

    # 2. With rules it may write to one topic and see no other.
    allow(node, binding(ResourceType.TOPIC, "orders", ANN, AclOperation.WRITE))
    assert produced(node, ANN, "orders") is None
    assert list(ann.list_topics(timeout=TIMEOUT_S).topics) == ["orders"]

    # 3. Another reads by prefix, in a group that it may use.
    prefixed = ResourcePatternType.PREFIXED
    allow(
        node,
        binding(ResourceType.TOPIC, "ord", BOB, AclOperation.READ, pattern=prefixed),
        binding(ResourceType.GROUP, "readers", BOB, AclOperation.READ),
    )
    settings = {**as_(node, BOB), "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "group.id": "readers"})
    consumer.subscribe(["orders"])
    (message,) = consumer.consume(1, TIMEOUT_S)
    assert message.value() == b"v"
    consumer.commit(asynchronous=False)
    consumer.close()
    stranger = Consumer({**settings, "group.id": "others"})
    stranger.subscribe(["orders"])
    (message,) = stranger.consume(1, TIMEOUT_S)
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    stranger.close()

    # 4. Rules are listed, survive a restart, and are removed.
    assert len(root.describe_acls(ANY).result(TIMEOUT_S)) == 3
    assert node.stop() == 0
    node = restarted = started(data)
    root = AdminClient(as_(node, ROOT))
    assert len(root.describe_acls(ANY).result(TIMEOUT_S)) == 3
    assert produced(node, ANN, "orders") is None
    of_ann = AclBindingFilter(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.MATCH,
        "User:ann",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    (removed,) = done(root.delete_acls([of_ann]))
    assert [each.principal for each in removed] == ["User:ann"]
    error = produced(node, ANN, "orders")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    log = "\n".join(node.log)
    assert "changed who=User:root host=127.0.0.1 what=create_acls" not in log  # Of the first run.
    assert "changed who=User:root host=127.0.0.1 what=delete_acls count=1" in log
    assert "refused who=User:ann host=127.0.0.1 what=" in log
    assert restarted.stop() == 0


def test_rules_of_a_user_who_is_removed_stay_and_nobody_has_them(node: Served, data: Path) -> None:
    root = AdminClient(as_(node, ROOT))
    done(root.create_topics([NewTopic("orders", 1)]))
    allow(node, binding(ResourceType.TOPIC, "orders", ANN, AclOperation.WRITE))
    assert produced(node, ANN, "orders") is None
    assert firn("user", "remove", ANN, "--data", str(data)).returncode == 0
    rules = root.describe_acls(ANY).result(TIMEOUT_S)
    assert [rule.principal for rule in rules] == ["User:ann"]
    error = produced(node, BOB, "orders")
    assert error is not None
    error = produced(node, ANN, "orders", 1_000)  # No longer a user at all.
    assert error is not None
    assert error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_kafka_python(node: Served) -> None:
    admin = kafka.admin.KafkaAdminClient(
        bootstrap_servers=node.kafka,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=ROOT,
        sasl_plain_password=ROOT,
    )
    rule = ACL(
        principal="User:ann",
        host="*",
        operation=PythonOperation.READ,
        permission_type=PythonPermission.DENY,
        resource_pattern=ResourcePattern(PythonType.TOPIC, "orders"),
    )
    made = admin.create_acls([rule])
    assert made["succeeded"] == [rule]
    every = ACLFilter(
        principal="User:ann",
        host=None,
        operation=PythonOperation.ANY,
        permission_type=PythonPermission.ANY,
        resource_pattern=ResourcePattern(PythonType.TOPIC, "orders"),
    )
    found = admin.describe_acls(every)
    assert rule in (found[0] if isinstance(found, tuple) else found)
    admin.delete_acls([every])
    left = admin.describe_acls(every)
    assert not (left[0] if isinstance(left, tuple) else left)
    admin.close()


def test_a_certificate_names_the_client(
    tmp_path: Path, authority: Authority, identity: Identity
) -> None:
    billing = authority.issue("Billing")
    served = Served(
        tmp_path / "data",
        settings={
            **tls_settings(identity),
            **ON,
            "FIRN_SECURITY_SUPER_USERS": "User:billing",
            "FIRN_SECURITY_TLS_CLIENT_CA": str(authority.certificate),
            "FIRN_SECURITY_CERTIFICATE_NAMES": "RULE:^CN=([^,]+)$/$1/L",
        },
    )
    try:
        names = {}
        for shown in (billing, authority.issue("stranger")):
            context = ssl.create_default_context(cafile=str(authority.certificate))
            context.load_cert_chain(shown.certificate, shown.key)
            with Wire(served, authority, context) as wire:
                request = MetadataRequest(topics=None, include_cluster_authorized_operations=True)
                answer = wire.ask(ApiKey.METADATA, 9, request)
                names[shown.certificate.stem] = answer.cluster_authorized_operations
        assert names["Billing"] > 0
        assert names["stranger"] == 0
    finally:
        assert served.stop() == 0
