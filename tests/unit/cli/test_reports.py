"""Errors and warnings of commands: what they say, in which form and colour."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from firnmq.cli.errors import hint_for
from firnmq.cli.main import main
from firnmq.cli.node import NodeRefused
from firnmq.cli.reports import report_error, warn_of_unknown_variables
from firnmq.cli.variables import COMMAND_VARIABLES
from firnmq.errors import (
    AlreadyExists,
    CannotListen,
    FirnError,
    KeyNotFound,
    LimitExceeded,
    ShardNotFound,
    TopicNotFound,
)

Capture = pytest.CaptureFixture[str]


def test_an_error_has_a_line_and_a_hint(capsys: Capture) -> None:
    report_error(TopicNotFound("wether"), as_json=False)
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: no topic 'wether'"
    assert hint.startswith("hint: firn topic list")


def test_as_json_it_is_one_document(capsys: Capture) -> None:
    report_error(TopicNotFound("wether"), as_json=True)
    document = json.loads(capsys.readouterr().err)
    assert document["error"] == "TopicNotFound"
    assert document["message"] == "no topic 'wether'"
    assert document["hint"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_what_cannot_be_written_is_named_without_a_number(capsys: Capture, number: int) -> None:
    report_error(OSError(number, os.strerror(number), "/data/firn"), as_json=False)
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: /data/firn: {os.strerror(number).lower()}"
    assert "--data" in hint


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EADDRINUSE, "another program listens there; stop it, or set kafka.port"),
        (errno.EACCES, "set kafka.port to a port from 1024 on"),
        (errno.EADDRNOTAVAIL, "set kafka.host"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_an_address_that_cannot_be_had_says_what_to_set(number: int, says: str) -> None:
    cause = OSError(number, os.strerror(number))
    text = str(CannotListen("kafka", "127.0.0.1", 9092, cause))
    assert text.startswith("cannot listen on 127.0.0.1:9092: ")
    assert says in text


@pytest.mark.parametrize(
    ("setting", "option", "variable"),
    [
        ("kafka", "--port", "FIRN_KAFKA_PORT"),
        ("admin", "--admin-port", "FIRN_ADMIN_PORT"),
    ],
)
def test_a_taken_port_names_the_option_and_the_variable(
    setting: str, option: str, variable: str
) -> None:
    cause = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    hint = hint_for(CannotListen(setting, "127.0.0.1", 9092, cause)) or ""
    assert f"serve {option} N" in hint
    assert variable in hint


@pytest.mark.parametrize(
    "error", [TopicNotFound("t"), KeyNotFound("k"), ShardNotFound("7"), AlreadyExists("topic", "t")]
)
def test_a_node_s_error_has_the_hint_of_the_error_itself(error: FirnError) -> None:
    refused = NodeRefused(404, type(error).__name__, str(error))
    assert hint_for(error) is not None
    assert hint_for(refused) == hint_for(error)


@pytest.mark.parametrize(
    ("args", "closest"), [(["reed", "t"], "read"), (["topics"], "topic"), (["server"], "serve")]
)
def test_a_misspelt_command_names_the_closest(args: list[str], closest: str) -> None:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2
    assert f"Did you mean '{closest}'?" in done.stderr


def test_a_command_like_no_other_is_refused() -> None:
    done = CliRunner().invoke(main, ["xyzzy"])
    assert done.exit_code == 2
    assert "No such command 'xyzzy'" in done.stderr


@pytest.mark.parametrize("command", [[], ["read"], ["topic", "create"]])
def test_help_is_also_a_command(command: list[str]) -> None:
    done = CliRunner().invoke(main, ["help", *command])
    assert done.exit_code == 0
    assert done.stdout == CliRunner().invoke(main, [*command, "--help"]).stdout


def test_a_limit_names_its_option() -> None:
    error = LimitExceeded("record", 2_000_000, 1_048_576, option="max.record.bytes")
    assert str(error) == "record is 2,000,000 bytes, the limit is 1,048,576 (max.record.bytes)"


def test_wrong_usage_is_json_too() -> None:
    done = CliRunner().invoke(main, ["topic", "list", "--json", "--nothing"])
    assert done.exit_code == 2
    assert json.loads(done.stderr)["error"] == "NoSuchOption"


def test_a_misspelt_variable_is_told_of(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for name in [name for name in os.environ if name.startswith("FIRN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FIRN_KAFKA_PORT", "9092")
    monkeypatch.setenv("FIRN_TOPIC_DEFAULTS_RETENTION_MS", "1")
    monkeypatch.setenv("FIRN_DATA", "x")
    warn_of_unknown_variables()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FIRN_KAFKA_PROT", "9092")
    monkeypatch.setenv("FIRN_DTA", "x")
    monkeypatch.setenv("FIRN_WHATEVER_ELSE", "1")
    warn_of_unknown_variables()
    assert capsys.readouterr().err.splitlines() == [
        "warning: FIRN_DTA is set, but there is no such setting; did you mean FIRN_DATA?",
        "warning: FIRN_KAFKA_PROT is set, but there is no such setting; "
        "did you mean FIRN_KAFKA_PORT?",
        "warning: FIRN_WHATEVER_ELSE is set, but there is no such setting",
    ]


def test_variables_of_a_kubernetes_service_are_none_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("FIRN_SERVICE_HOST", "10.0.0.7")
    monkeypatch.setenv("FIRN_PORT", "tcp://10.0.0.7:9092")
    monkeypatch.setenv("FIRN_PORT_9092_TCP_ADDR", "10.0.0.7")
    warn_of_unknown_variables()
    assert capsys.readouterr().err == ""


def _all_commands() -> Iterator[click.Command]:
    context = click.Context(main)
    commands: list[click.Command] = [main]
    while commands:
        command = commands.pop()
        yield command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                each = command.get_command(context, name)
                assert each is not None
                commands.append(each)


def test_every_variable_of_a_command_is_known() -> None:
    names = (each.envvar for command in _all_commands() for each in command.params)
    assert {each for each in names if isinstance(each, str)} == COMMAND_VARIABLES


def test_no_two_options_of_a_command_are_one() -> None:
    """An option that has another one's name takes its value: --node gave `shard move --to` one."""
    for command in _all_commands():
        names = Counter(each.name for each in command.params)
        assert max(names.values(), default=1) == 1, (command.name, names)


class TestColour:
    @pytest.fixture(autouse=True)
    def terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr("click.utils.should_strip_ansi", lambda _, color: color is False)

    def test_a_terminal_has_it(self, capsys: Capture) -> None:
        report_error(TopicNotFound("x"), as_json=False)
        assert "\x1b[31m\x1b[1merror:\x1b[0m" in capsys.readouterr().err

    def test_not_with_no_color(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        report_error(TopicNotFound("x"), as_json=False)
        assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_FIRN_COMPLETE" in done.output


def test_completion_knows_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"_FIRN_COMPLETE": "bash_complete", "COMP_CWORD": "2", "COMP_WORDS": "firn topic "}
    done = CliRunner().invoke(main, [], env=variables, prog_name="firn")
    assert "plain,create" in done.output
