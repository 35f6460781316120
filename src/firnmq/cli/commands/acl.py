"""`firn acl`: who may do what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from firnmq.cli.console import json_option, print_json, print_table, safe_text
from firnmq.cli.target import chosen_node, opened, target_options
from firnmq.errors import InvalidArgument

_CLUSTER = "kafka-cluster"
_RESOURCES = ("topic", "group", "transactional_id")
_COLUMNS = ("PRINCIPAL", "HOST", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN")

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _resource_options(command: CommandT) -> CommandT:
    options = [
        click.option("--topic", metavar="NAME", help="About a topic; * is every topic."),
        click.option("--group", metavar="NAME", help="About a consumer group."),
        click.option("--transactional-id", metavar="NAME", help="About a transactional id."),
        click.option("--cluster", is_flag=True, help="About the cluster."),
        click.option("--prefixed", is_flag=True, help="About all names that begin with NAME."),
        click.option("--host", metavar="ADDRESS", help="Only from this IP address."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
@target_options
def acl() -> None:
    """Rules about which Kafka clients may do what, in a data directory or on a running node.

    A node obeys the rules if security.authorization is on. A principal is User:NAME; User:* is
    every client.
    """


@acl.command()
@click.argument("principal")
@click.argument("operations", nargs=-1, required=True, metavar="OPERATION...")
@_resource_options
@click.option("--deny", is_flag=True, help="Deny it, whatever other rules allow.")
@target_options
@json_option
def add(
    principal: str, operations: tuple[str, ...], deny: bool, as_json: bool, **resource: Any
) -> None:
    """Allow or deny operations.

    Operations are all, read, write, create, delete, alter, describe, describe_configs,
    alter_configs, and of the cluster also cluster_action and idempotent_write.
    """
    fields = _fields(**resource)
    if "resource_type" not in fields:
        raise click.UsageError("name what it is about: --topic, --group, --cluster, ...")
    rules = [
        {
            "principal": principal,
            "operation": operation.replace("-", "_"),
            "permission": "deny" if deny else "allow",
            **fields,
        }
        for operation in operations
    ]
    node = chosen_node(changes=True)
    if node is not None:
        added = node.call("POST", ("rules",), {"rules": rules})["added"]
    else:
        from firnmq.server.documents import AccessRule
        from firnmq.server.rules import rule_of

        wanted = [rule_of(AccessRule(**each)) for each in rules]
        with opened(create=True) as store:
            added = _store(store).add(wanted)
    if as_json:
        print_json({"added": added})
    else:
        click.echo(f"added {_counted(added)}")


@acl.command(name="list")
@target_options
@json_option
def list_rules(as_json: bool) -> None:
    """Show all rules."""
    node = chosen_node(changes=False)
    if node is not None:
        rules = node.get("rules")
    else:
        from firnmq.brokers.security.acl import RuleFilter
        from firnmq.server.rules import shown_rule

        with opened() as store:
            rules = _plain(shown_rule(rule) for rule in _store(store).select(RuleFilter()))
    if as_json:
        for each in rules:
            print_json(each)
    elif rules:
        _print(rules)
    else:
        click.echo("no rules yet; make one with: firn acl add", err=True)


@acl.command()
@click.option("--principal", help="Of this principal.")
@click.option("--operation", help="About this operation.")
@_resource_options
@click.option("--all", "everything", is_flag=True, help="All rules there are.")
@target_options
@json_option
def remove(
    principal: str | None,
    operation: str | None,
    everything: bool,
    as_json: bool,
    **resource: Any,
) -> None:
    """Remove the rules that match all given options, and show them."""
    selection = {**_fields(**resource), "principal": principal, "all": everything}
    if operation is not None:
        selection["operation"] = operation.replace("-", "_")
    if not everything and set(selection.values()) <= {None, False}:
        raise click.UsageError("say which rules, or --all")
    node = chosen_node(changes=True)
    if node is not None:
        removed = node.call("POST", ("rules", "removals"), selection)
    else:
        from firnmq.server.documents import RuleSelection
        from firnmq.server.rules import filter_of, shown_rule

        wanted = filter_of(RuleSelection(**selection))
        with opened() as store:
            (found,) = _store(store).remove([wanted])
        removed = _plain(shown_rule(rule) for rule in found)
    if as_json:
        for each in removed:
            print_json(each)
        return
    if removed:
        _print(removed)
    click.echo(f"removed {_counted(len(removed))}")


def _fields(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    prefixed: bool,
    host: str | None,
) -> dict[str, Any]:
    """The fields of a rule that the options name."""
    names = (topic, group, transactional_id)
    named = [(kind, name) for kind, name in zip(_RESOURCES, names, strict=True) if name is not None]
    if cluster:
        named.append(("cluster", _CLUSTER))
    if len(named) > 1:
        raise click.UsageError("a rule is about one of topic, group, transactional id and cluster")
    if prefixed and (cluster or not named):
        raise InvalidArgument("--prefixed", "needs the name of a topic, group or transactional id")
    fields: dict[str, Any] = {} if host is None else {"host": host}
    if named:
        fields["resource_type"], fields["name"] = named[0]
        fields["pattern"] = "prefixed" if prefixed else "literal"
    return fields


def _store(store: Any) -> Any:
    from firnmq.brokers.security.acl import RuleStore

    return RuleStore(store.local.meta, store.local.cache)


def _plain(documents: Any) -> list[dict[str, Any]]:
    import msgspec

    return [msgspec.to_builtins(each) for each in documents]


def _print(rules: list[dict[str, Any]]) -> None:
    keys = ("principal", "host", "permission", "operation", "resource_type", "name", "pattern")
    print_table(_COLUMNS, [tuple(safe_text(rule[key]) for key in keys) for rule in rules])


def _counted(count: int) -> str:
    return f"{count:,} rule" if count == 1 else f"{count:,} rules"
