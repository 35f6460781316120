"""`firn produce`: records from a file or stdin to a topic on a running node."""

from __future__ import annotations

from typing import IO, Any

import click

from firnmq.cli.console import count, json_option, print_json
from firnmq.cli.errors import BadInput
from firnmq.cli.node import NodeClient, NodeRefused, running_node

_BATCH_RECORDS = 1000
_BATCH_BYTES = 4 * 1024 * 1024
_LINE_BYTES_MAX = 16 * 1024 * 1024


@click.command()
@click.argument("topic")
@click.option("--file", "source", default="-", metavar="FILE", help="Otherwise, and with -: stdin.")
@click.option("--key", help="Key of every record.")
@click.option("--shard", type=int, help="Shard; otherwise that of the key, or one in turn.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="A value per line, or a JSON document as firn tail --json prints it.",
)
@json_option
def produce(
    topic: str, source: str, key: str | None, shard: int | None, layout: str, as_json: bool
) -> None:
    """Write records through a node and say how many are stored."""
    sending = _Sending(running_node(), topic, shard)
    with click.open_file(source, "rb") as file:
        _send(file, "stdin" if source == "-" else source, sending, key, layout)
    for place in sending.places:
        if as_json:
            print_json(place)
            continue
        base, end = place["base_offset"], place["next_offset"]
        records = count(place["record_count"], "record")
        where = f"offset {base}" if end == base + 1 else f"offsets {base} to {end - 1}"
        click.echo(f"{topic} shard {place['shard']}: {records} at {where}")
    if not sending.places and not as_json:
        click.echo("nothing to write: the input is empty", err=True)


class _Sending:
    """Gathers records into requests, and where they went into ranges."""

    def __init__(self, node: NodeClient, topic: str, shard: int | None) -> None:
        self._node = node
        self._topic = topic
        self._shard = shard
        self._records: list[dict[str, Any]] = []
        self._bytes = 0
        self.places: list[dict[str, Any]] = []

    @property
    def record_count(self) -> int:
        return sum(place["record_count"] for place in self.places)

    def add(self, record: dict[str, Any], size: int) -> None:
        self._records.append(record)
        self._bytes += size
        if len(self._records) >= _BATCH_RECORDS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._records:
            return
        body = {"records": self._records, "shard": self._shard}
        self._records, self._bytes = [], 0
        for place in self._node.call("POST", ("topics", self._topic, "records"), body):
            self._note(place)

    def _note(self, place: dict[str, Any]) -> None:
        for known in self.places:
            if known["shard"] == place["shard"] and known["next_offset"] == place["base_offset"]:
                known["next_offset"] = place["next_offset"]
                known["record_count"] += place["record_count"]
                return
        self.places.append(place)


def _send(file: IO[bytes], source: str, sending: _Sending, key: str | None, layout: str) -> None:
    from firnmq.errors import InvalidRecord

    number = 0
    try:
        while line := file.readline(_LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > _LINE_BYTES_MAX:
                raise InvalidRecord(f"is longer than {_LINE_BYTES_MAX:,} bytes")
            raw = line.removesuffix(b"\n").removesuffix(b"\r")
            record = _record(raw, layout)
            if key is not None:
                record["key"] = key
                record.pop("key_base64", None)
            sending.add(record, len(line))
        sending.flush()
    except InvalidRecord as error:
        sending.flush()  # What came before the bad line is stored, and said to be.
        raise BadInput(source, number, str(error), sending.record_count) from error
    except NodeRefused as error:
        stored = sending.record_count
        raise BadInput(source, number, f"up to this line: {error}", stored) from error


def _record(raw: bytes, layout: str) -> dict[str, Any]:
    if layout == "json":
        import msgspec

        from firnmq.errors import InvalidRecord
        from firnmq.record.document import from_document

        try:
            document = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise InvalidRecord(f"not JSON: {error}") from error
        from_document(document)  # Judged here too, where the line's number is known.
        assert isinstance(document, dict)
        return document
    try:
        return {"value": raw.decode("utf-8")}
    except UnicodeDecodeError:
        import base64

        return {"value_base64": base64.b64encode(raw).decode("ascii")}
