"""`firn dump`: the batches of a segment file, readable, without a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from firnmq.cli.console import (
    count,
    json_option,
    print_json,
    safe_text,
    tell_when_stopped,
    time_text,
)
from firnmq.cli.shared_file import dumped_frames, is_shared_file

if TYPE_CHECKING:
    from firnmq.record import BatchEntry, Record

_CHUNK_BYTES = 1024 * 1024
_HEAD_BYTES = 12
"""A batch's base offset and length, which are not both zero."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--records", "with_records", is_flag=True, help="Show the records too.")
@json_option
@click.pass_context
def dump(ctx: click.Context, file: Path, with_records: bool, as_json: bool) -> None:
    """Show the batches of a segment file, or of all segments in a shared file.

    Needs no data directory and changes nothing. Stops at the first bytes that are no batch, says
    where and why, and ends with exit code 1. Zeros at the end are no fault: an active segment has
    them where its next batches will be.
    """
    if is_shared_file(file):
        _dump_shared(ctx, file, with_records=with_records, as_json=as_json)
        return
    batch_count = record_count = 0
    blank_bytes = 0
    stop: _Stop | None = None
    is_gapless = True
    next_offset: int | None = None
    tell_when_stopped(lambda: f"{count(batch_count, 'batch')} shown")
    with file.open("rb") as source:
        for found in _batches(source):
            if isinstance(found, _Preallocated):
                blank_bytes = found.size
                break
            if isinstance(found, _Stop):
                stop = found
                break
            is_gap = next_offset not in (None, found.entry.base_offset)
            is_gapless = is_gapless and not is_gap
            next_offset = found.entry.last_offset + 1
            batch_count += 1
            record_count += found.entry.record_count
            stop = _show(found, with_records=with_records, as_json=as_json, is_gap=is_gap)
            if stop is not None:
                break
    if not as_json:
        summary = f"{count(batch_count, 'batch')}, {count(record_count, 'record')}"
        if blank_bytes:
            summary += f"; {blank_bytes:,} blank bytes follow"
        click.echo(summary + ("" if is_gapless else "; offsets do not follow each other"))
    elif blank_bytes:
        print_json({"blank_bytes": blank_bytes})
    if stop is not None:
        _show_stop(stop, file, as_json=as_json)
    if stop is not None or not is_gapless:
        ctx.exit(1)


def _dump_shared(ctx: click.Context, file: Path, *, with_records: bool, as_json: bool) -> None:
    """Frames of one segment need not be near each other, so gaps between offsets are no fault."""
    frame_count = damaged_count = 0
    tell_when_stopped(lambda: f"{count(frame_count, 'frame')} shown")
    with file.open("rb") as source:
        for frame in dumped_frames(source):
            frame_count += 1
            damaged_count += not frame.is_whole
            if as_json:
                print_json(frame.document())
            else:
                kind = "copy" if frame.is_copy else "append"
                damage = "" if frame.is_whole else "  DAMAGED"
                click.echo(
                    f"frame at {frame.position:,}: shard {frame.shard_uid}, segment "
                    f"{frame.segment} slot {frame.slot}, byte {frame.segment_position:,}, "
                    f"{kind}{damage}"
                )
            for found in _batches_of(frame.data, frame.position) if frame.is_whole else ():
                _show(found, with_records=with_records, as_json=as_json, is_gap=False)
    if not as_json:
        damage = f", {damaged_count:,} damaged" if damaged_count else ""
        click.echo(f"{count(frame_count, 'frame')}{damage}")
    if damaged_count:
        ctx.exit(1)


def _batches_of(data: bytes, position: int) -> Iterator[_Batch]:
    from firnmq.record import walk

    for entry in walk(data).headers:
        batch = data[entry.position : entry.position + entry.size]
        yield _Batch(position + entry.position, entry, batch)


class _Batch(NamedTuple):
    position: int
    entry: BatchEntry
    data: bytes


class _Stop(NamedTuple):
    """Why and where the file could not be read on."""

    position: int
    rest_bytes: int
    reason: str


class _Preallocated(NamedTuple):
    """Zeros up to the end, where the next batches will be."""

    size: int


def _batches(source: IO[bytes]) -> Iterator[_Batch | _Stop | _Preallocated]:
    from firnmq.disk.files import is_blank
    from firnmq.record import BatchStream, Reason

    size = Path(source.name).stat().st_size
    stream = BatchStream()
    while True:
        stream.offset = None  # A batch that does not follow its predecessor is shown, too.
        start, wanted = stream.position, max(_CHUNK_BYTES, stream.needed_bytes)
        source.seek(start)
        chunk = source.read(wanted)
        run = stream.judge(chunk)
        if run is not None:
            for entry in run.entries:
                yield _Batch(start + entry.position, entry, bytes(run.batch(entry)))
        stop, position = stream.stop, stream.position
        if stop is None:
            if not chunk:
                return
            continue
        is_incomplete = stop.reason is Reason.INCOMPLETE
        if is_incomplete and (run is not None or len(chunk) == wanted):
            continue
        if position and is_blank(memoryview(chunk)[position - start :]):
            blank_bytes = _blank_bytes(source, position)
            if blank_bytes:
                yield _Preallocated(blank_bytes)
                return
            source.seek(position)
            if not is_blank(source.read(_HEAD_BYTES)):  # A batch was written there just now.
                continue
        text = stop.text
        if is_incomplete:
            text = f"the last batch needs {stream.needed_bytes:,} bytes and is truncated"
        yield _Stop(position, size - position, text)
        return


def _blank_bytes(source: IO[bytes], position: int) -> int:
    """How many zeros there are from here to the end; 0 if anything else is among them."""
    from firnmq.disk.files import is_blank

    source.seek(position)
    size = 0
    while chunk := source.read(_CHUNK_BYTES):
        if not is_blank(chunk):
            return 0
        size += len(chunk)
    return size


def _show(found: _Batch, *, with_records: bool, as_json: bool, is_gap: bool) -> _Stop | None:
    """Shows one batch; a reason to stop if its records cannot be read."""
    from firnmq.errors import Corruption

    fields = _fields(found, is_gap)
    records: list[Record] = []
    stop = None
    if with_records:
        try:
            records = _records(found.data)
        except Corruption as error:
            stop = _Stop(found.position, len(found.data), f"its records: {error.reason}")
    if as_json:
        if with_records:
            fields["records"] = [_record_document(record) for record in records]
        print_json(fields)
        return stop
    click.echo(_line(fields))
    for record in records:
        tags = "".join(f"  #{safe_text(tag)}" for tag in record.tags)
        moment = time_text(record.timestamp_ms)
        key, value = safe_text(record.key), safe_text(record.value)
        click.echo(f"    {record.offset}  {moment}  {key}  {value}{tags}")
    return stop


def _records(batch: bytes) -> list[Record]:
    from firnmq.record import Selection, decode

    return decode([batch], Selection(include_control=True), verify=False).records()


def _record_document(record: Record) -> dict[str, object]:
    from firnmq.config import TopicConfig
    from firnmq.record.document import to_document

    document = to_document(record, topic="", shard=0, config=TopicConfig())
    del document["topic"], document["shard"]  # A file by itself does not tell.
    return document


def _fields(found: _Batch, is_gap: bool) -> dict[str, object]:
    from firnmq.record import parse_header

    header = parse_header(found.data)
    return {
        "position": found.position,
        "size_bytes": len(found.data),
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "compression": _compression(header.attributes),
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "crc": f"{header.crc:08x}",
        "is_after_gap": is_gap,
    }


def _compression(attributes: int) -> str:
    from firnmq.record import Compression
    from firnmq.record.batch import ATTRIBUTE_CODEC

    number = attributes & ATTRIBUTE_CODEC
    return Compression(number).name.lower() if number <= max(Compression) else f"codec {number}"


def _line(fields: dict[str, object]) -> str:
    parts = [
        f"byte {fields['position']:,}",
        f"{fields['size_bytes']:,} bytes",
        f"offsets {fields['base_offset']} to {fields['last_offset']}",
        f"records {fields['record_count']}",
        f"newest {time_text(int(str(fields['max_timestamp'])))}",
        f"compression {fields['compression']}",
        f"epoch {fields['leader_epoch']}",
        f"crc {fields['crc']}",
    ]
    if fields["producer_id"] != -1:
        parts.append(
            f"producer {fields['producer_id']}/{fields['producer_epoch']} "
            f"from {fields['base_sequence']}"
        )
    for name in ("is_transactional", "is_control", "is_after_gap"):
        if fields[name]:
            parts.append(name.removeprefix("is_").replace("_", " "))
    return "  ".join(parts)


def _show_stop(stop: _Stop, file: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"stopped_at": stop.position, "rest_bytes": stop.rest_bytes, "reason": stop.reason}
        )
    click.echo(
        f"error: {file} at byte {stop.position:,}: {stop.reason}; "
        f"{stop.rest_bytes:,} bytes from there on are not shown",
        err=True,
    )
