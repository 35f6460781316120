"""What the authorizer costs: the same load on two nodes of ours, one of which judges requests."""

from contextlib import ExitStack

from benchmarks.bench_kafka import Side
from benchmarks.harness import Bar, Measured, Run, benchmark
from benchmarks.kafka_client import Client
from benchmarks.kafka_peer import Firn
from firnmq.brokers.security.acl import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    RuleStore,
)
from firnmq.server.local import LocalStore

_BULK_RECORDS = 200_000
_SINGLE_RECORDS = 20_000
_OTHER_RULES = 1_000
_OPTIONS = {"durability": "os", "index.key": "false", "index.tag": "false"}
_ON = '[security]\nauthorization = true\nsuper_users = ["User:root"]\n'


class Judging(Firn):
    """A node with an authorizer, where the client may do everything by rules, among many others."""

    def command(self) -> list[str]:
        config = self.directory / "firn.toml"
        config.write_text(_ON, encoding="utf-8")
        return [*super().command(), "--config", str(config)]

    def add_rules(self) -> None:
        store = LocalStore(self.directory / "data", background=False)
        kinds = {
            ResourceType.TOPIC: "*",
            ResourceType.GROUP: "*",
            ResourceType.CLUSTER: CLUSTER_NAME,
        }
        rules = [_rule("User:*", kind, name) for kind, name in kinds.items()]
        rules += [
            _rule(f"User:u{number}", ResourceType.TOPIC, f"t{number}")
            for number in range(_OTHER_RULES)
        ]
        RuleStore(store.meta, store.cache).add(rules)
        store.close()


def _rule(principal: str, kind: ResourceType, name: str) -> Rule:
    return Rule(
        resource_type=kind,
        pattern=PatternType.LITERAL,
        name=name,
        principal=principal,
        host="*",
        operation=Operation.ALL,
        permission=Permission.ALLOW,
    )


@benchmark("acl_cost", unit="records/s", bar=Bar.ratio_at_least(0.98))
def acl_cost(run: Run) -> Measured:
    """Produced in bulk, produced one record per request, and consumed: with an authorizer and a
    thousand rules, to without."""
    root = run.scratch()
    for name in ("with", "without"):
        (root / name).mkdir()
    judging, plain = Judging(root / "with"), Firn(root / "without")
    judging.add_rules()
    with ExitStack() as running:
        sides = []
        for server in (judging, plain):
            running.callback(server.stop)
            server.start()
            sides.append(Side(server, Client(server.address)))
        ours, baseline = sides
        return run.alternate(ours=lambda: _round(ours), baseline=lambda: _round(baseline))


def _round(side: Side) -> float:
    with side.topic(1, _OPTIONS) as topic:
        seconds = side.client.produce(topic, 1, _BULK_RECORDS)
        seconds += _BULK_RECORDS / side.client.consume(topic, 1, _BULK_RECORDS)
    with side.topic(1, _OPTIONS) as topic:
        seconds += side.client.produce_one_by_one(topic, _SINGLE_RECORDS)
    return (2 * _BULK_RECORDS + _SINGLE_RECORDS) / seconds
