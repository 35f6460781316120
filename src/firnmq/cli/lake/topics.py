"""How a sync converts each topic: options of the command before the file's `[lake.topics.NAME]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firnmq.config import LakeConfig, LakeTopicConfig, load_lake_config
from firnmq.errors import InvalidArgument

if TYPE_CHECKING:
    from firnmq.lake.jobs.sync import SyncSettings


class TopicChoices:
    """What a file says about topics, and which of them are meant."""

    def __init__(self, config_path: Path | None, named: tuple[str, ...]) -> None:
        self._path = config_path
        self._config: LakeConfig = load_lake_config(path=config_path)
        self.topics = named or tuple(self._config.topics)
        if not self.topics:
            raise click.UsageError("name a topic, or give a --config with [lake.topics.NAME]")

    def settings(
        self,
        topic: str,
        *,
        partition: str | None,
        schema_path: Path | None,
        schema_kind: str | None,
        writers: tuple[str, ...],
        **others: Any,
    ) -> SyncSettings:
        """What is given on the command line counts for all topics of the command."""
        from firnmq.lake.jobs.sync import SyncSettings

        chosen = self._config.topics.get(topic, LakeTopicConfig())
        document = None
        if schema_path is not None:
            document = _text(schema_path)
        elif chosen.schema is not None:
            document = _text(self._beside(chosen.schema))
        numbered = {number: _text(self._beside(path)) for number, path in chosen.writers.items()}
        numbered |= {number: _text(path) for number, path in map(_writer, writers)}
        _check_schema(schema_path or chosen.schema, schema_path, schema_kind, writers)
        return SyncSettings(
            partition=partition or chosen.partition or "day",
            schema_document=document,
            schema_kind=schema_kind or chosen.schema_kind,
            schema_writers=numbered,
            **others,
        )

    def _beside(self, path: str) -> Path:
        assert self._path is not None
        return self._path.parent / path


def _check_schema(
    schema: Path | str | None, given: Path | None, kind: str | None, writers: tuple[str, ...]
) -> None:
    """A table keeps the mode it is made with, so nothing that speaks of a schema goes unnoticed."""
    if schema is None and (kind is not None or writers):
        option = "--schema-writer" if kind is None else "--schema-kind"
        raise click.UsageError(f"{option} says how values are encoded, and needs --schema FILE")
    if given is not None and given.suffix == ".avsc" and kind is None:
        raise click.UsageError(
            f"{given} looks like an Avro schema: give --schema-kind avro or avro-confluent"
        )


def _writer(text: str) -> tuple[int, Path]:
    number, equals, path = text.partition("=")
    if not equals or not number.strip().isdecimal():
        raise click.BadParameter(f"{text!r} is not NUMBER=FILE", param_hint="--schema-writer")
    return int(number), Path(path)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(str(path), f"cannot be read as a schema: {error}") from None
