"""`firn group`: consumer groups of a running node."""

from __future__ import annotations

from typing import Any

import click

from firnmq.cli.console import (
    confirm,
    count,
    json_option,
    parse_time,
    print_json,
    print_table,
    safe_text,
)
from firnmq.cli.target import running_node, target_options
from firnmq.cli.topic_argument import topic_argument


@click.group()
@target_options
def group() -> None:
    """List, describe, move and delete the consumer groups of a running node."""


@group.command(name="list")
@target_options
@json_option
def list_groups(as_json: bool) -> None:
    """Show all groups."""
    groups = running_node(changes=False).get("groups")
    if as_json:
        for each in groups:
            print_json(each)
        return
    if not groups:
        click.echo("no groups yet; a consumer with a group.id makes one", err=True)
        return
    print_table(
        ("GROUP", "STATE", "PROTOCOL", "MEMBERS"),
        [
            (safe_text(each["group"]), each["state"], each["protocol_type"], each["member_count"])
            for each in groups
        ],
    )


@group.command()
@click.argument("name")
@target_options
@json_option
def describe(name: str, as_json: bool) -> None:
    """Show a group's members, and how far it is in each shard."""
    found = running_node(changes=False).get("groups", name)
    if as_json:
        print_json(found)
        return
    members = count(found["member_count"], "member")
    generation = f"generation {found['generation']}"
    click.echo(f"group {safe_text(name)}, {found['state']}, {members}, {generation}")
    if found["members"]:
        click.echo()
        print_table(
            ("MEMBER", "INSTANCE", "CLIENT", "HOST", "LEADER"),
            [
                (
                    safe_text(each["member_id"]),
                    safe_text(each["instance_id"]),
                    safe_text(each["client_id"]),
                    each["client_host"],
                    "yes" if each["member_id"] == found["leader"] else "",
                )
                for each in found["members"]
            ],
        )
    if found["offsets"]:
        click.echo()
        print_table(
            ("TOPIC", "SHARD", "COMMITTED", "END", "LAG", "MEMBER"),
            [
                (
                    each["topic"],
                    each["shard"],
                    each["committed_offset"],
                    each["end_offset"],
                    each["lag"],
                    safe_text(each["member_id"]),
                )
                for each in found["offsets"]
            ],
        )


@group.command(name="reset-offsets")
@click.argument("name")
@topic_argument()
@click.option("--to-earliest", is_flag=True, help="To the start of each shard.")
@click.option("--to-latest", is_flag=True, help="To the end of each shard.")
@click.option("--to-offset", type=int, help="To this offset.")
@click.option("--to-time", metavar="TIME", help="To the first record of this time: ISO 8601 or ms.")
@click.option("--shift-by", type=int, help="Forward by this many records, or back if negative.")
@click.option(
    "--shard", "shards", type=int, multiple=True, help="Only this shard; repeat for more."
)
@click.option("--dry-run", is_flag=True, help="Show the new offsets, but do not set them.")
@target_options
@json_option
def reset_offsets(
    name: str,
    topic: str,
    shards: tuple[int, ...],
    dry_run: bool,
    as_json: bool,
    **ways: Any,
) -> None:
    """Move the committed offsets of a group that is not in use."""
    to, value = _way(ways)
    body = {
        "topic": topic,
        "to": to,
        "value": value,
        "shards": list(shards) or None,
        "dry_run": dry_run,
    }
    moved = running_node(changes=not dry_run).call("POST", ("groups", name, "offsets"), body)
    if as_json:
        for each in moved:
            print_json(each)
        return
    print_table(
        ("TOPIC", "SHARD", "BEFORE", "AFTER", "START", "END"),
        [
            (
                each["topic"],
                each["shard"],
                each["before"],
                each["after"],
                each["start_offset"],
                each["end_offset"],
            )
            for each in moved
        ],
    )
    if dry_run:
        click.echo("nothing was changed; without --dry-run it is", err=True)


def _way(ways: dict[str, Any]) -> tuple[str, int | None]:
    given = [name for name, value in ways.items() if value is not None and value is not False]
    if len(given) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-time, --shift-by"
        )
    value = ways[given[0]]
    match given[0]:
        case "to_offset":
            return "offset", value
        case "to_time":
            return "time", parse_time("--to-time", value)
        case "shift_by":
            return "shift", value
        case way:
            return way.removeprefix("to_"), None


@group.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@target_options
@json_option
def delete(name: str, yes: bool, as_json: bool) -> None:
    """Delete a group that is not in use, with its committed offsets."""
    node = running_node(changes=True)
    if not yes:
        offsets = count(len(node.get("groups", name)["offsets"]), "committed offset")
        confirm(f"Delete group {safe_text(name)} with {offsets}?")
    deleted = node.call("DELETE", ("groups", name))
    if as_json:
        print_json(deleted)
    else:
        click.echo(f"deleted group {safe_text(name)}")
