"""Settings of a sync: the command's options before the file's."""

from pathlib import Path

import click
import pytest

from firnmq.cli.lake.topics import TopicChoices
from firnmq.errors import InvalidArgument
from firnmq.lake.jobs.sync import SyncSettings

NOTHING = {"partition": None, "schema_path": None, "schema_kind": None}


def choices(folder: Path, *topics: str) -> TopicChoices:
    (folder / "new.avsc").write_text("new")
    (folder / "old.avsc").write_text("old")
    path = folder / "firn.toml"
    path.write_text(
        '[lake.topics.a]\nschema = "new.avsc"\nschema_kind = "avro-confluent"\n'
        'partition = "hour"\nwriters = {1 = "old.avsc"}\n[lake.topics.b]\n'
        '[lake.topics.c]\nschema = "gone.json"\n'
    )
    return TopicChoices(path, topics)


def test_the_file_says_which_topics_and_how(tmp_path: Path) -> None:
    found = choices(tmp_path)
    assert found.topics == ("a", "b", "c")
    assert found.settings("a", writers=(), commit_bytes=5, **NOTHING) == SyncSettings(
        commit_bytes=5,
        partition="hour",
        schema_document="new",
        schema_kind="avro-confluent",
        schema_writers={1: "old"},
    )
    assert found.settings("b", writers=(), **NOTHING) == SyncSettings()
    with pytest.raises(InvalidArgument, match="cannot be read as a schema"):
        found.settings("c", writers=(), **NOTHING)


def test_the_command_line_counts_first(tmp_path: Path) -> None:
    found = choices(tmp_path, "a", "other")
    assert found.topics == ("a", "other")
    own = tmp_path / "own.json"
    own.write_text("own")
    for topic in found.topics:
        settings = found.settings(
            topic,
            partition="day",
            schema_path=own,
            schema_kind="json",
            writers=(f"7={own}",),
        )
        assert (settings.partition, settings.schema_kind) == ("day", "json")
        assert settings.schema_document == "own"
        assert settings.schema_writers[7] == "own"


@pytest.mark.parametrize("text", ["7", "x=y", "=y"])
def test_a_writer_is_a_number_and_a_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(click.BadParameter):
        choices(tmp_path).settings("b", writers=(text,), **NOTHING)


def test_no_topic_at_all_is_refused() -> None:
    with pytest.raises(click.UsageError):
        TopicChoices(None, ())
