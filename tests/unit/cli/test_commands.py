"""The list of commands is that of the modules."""

from pathlib import Path

import click
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import firnmq.cli.commands
from firnmq.cli.commands.topic import SHARD_COLUMNS
from firnmq.cli.main import COMMANDS, main
from firnmq.server.documents import ShardSummary

_PARTS = {"__init__"}


def test_every_module_is_a_command_and_every_command_a_module() -> None:
    folder = Path(firnmq.cli.commands.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - _PARTS == set(COMMANDS)
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help


def test_descriptions_of_completions_in_fish_keep_their_commas() -> None:
    script = CliRunner().invoke(main, ["completion", "fish"]).stdout
    assert 'string split --max 1 "," $completion' in script


def test_storage_types_are_completed() -> None:
    completer = ShellComplete(main, {}, "firn", "_FIRN_COMPLETE")
    found = completer.get_completions(["topic", "create", "t", "--storage"], "r")
    assert [each.value for each in found] == ["rocksdb"]


def test_a_description_has_a_column_for_everything_that_a_node_tells_of_a_shard() -> None:
    assert set(SHARD_COLUMNS) == set(ShardSummary.__struct_fields__)
