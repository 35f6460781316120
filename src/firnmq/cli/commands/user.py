"""`firn user`: who may log in to the Kafka listener."""

from __future__ import annotations

import sys
from typing import IO

import click

from firnmq.cli.console import json_option, print_json, print_table, safe_text
from firnmq.cli.target import chosen_node, opened, target_options
from firnmq.errors import InvalidArgument


@click.group()
@target_options
def user() -> None:
    """Add, remove and list users of a data directory or of a running node."""


@user.command()
@click.argument("name")
@click.option(
    "--password-file",
    type=click.File("r"),
    help="File whose first line is the password; - is stdin. Otherwise it is asked for.",
)
@target_options
@json_option
def add(name: str, password_file: IO[str] | None, as_json: bool) -> None:
    """Add a user, or give one another password. Only a salted hash of it is kept."""
    password = _password(password_file)
    node = chosen_node(changes=True)
    if node is not None:
        change = node.call("PUT", ("users", name), {"password": password})["change"]
    else:
        from firnmq.brokers.security import UserStore, check_user_name

        check_user_name(name)
        with opened(create=True) as store:
            is_new = UserStore(store.local.kv).put(name, password)
        change = "added" if is_new else "changed"
    _show(name, change, as_json)


@user.command()
@click.argument("name")
@target_options
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a user; a running node closes the user's connections."""
    node = chosen_node(changes=True)
    if node is not None:
        node.call("DELETE", ("users", name))
    else:
        from firnmq.brokers.security import UserStore

        with opened() as store:
            UserStore(store.local.kv).remove(name)
    _show(name, "removed", as_json)


@user.command(name="list")
@target_options
@json_option
def list_users(as_json: bool) -> None:
    """Show all users."""
    node = chosen_node(changes=False)
    if node is not None:
        users = node.get("users")
    else:
        from firnmq.brokers.security import UserStore

        with opened() as store:
            users = [{"user": name} for name in UserStore(store.local.kv).names()]
    if as_json:
        for each in users:
            print_json(each)
    elif users:
        print_table(("USER",), [(safe_text(each["user"]),) for each in users])
    else:
        click.echo("no users yet; make one with: firn user add NAME", err=True)


def _password(file: IO[str] | None) -> str:
    if file is not None:
        try:
            return str(file.readline()).rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidArgument("--password-file", "is not UTF-8 text") from None
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at; use --password-file")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


def _show(name: str, change: str, as_json: bool) -> None:
    if as_json:
        print_json({"user": name, "change": change})
    else:
        click.echo(f"{change} user {safe_text(name)}")
