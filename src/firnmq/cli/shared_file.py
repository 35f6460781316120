"""What `firn dump` shows of a shared file: the frames with their batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple


class DumpedFrame(NamedTuple):
    position: int
    """Of its batches in the file."""
    shard_uid: int
    segment: int
    slot: int
    segment_position: int
    is_copy: bool
    is_whole: bool
    data: bytes

    def document(self) -> dict[str, object]:
        fields = self._asdict()
        del fields["data"]
        return {"frame": {**fields, "size_bytes": len(self.data)}}


def is_shared_file(path: Path) -> bool:
    from firnmq.engines.media.layouts.shared_file.frames import (
        FILE_HEADER_BYTES,
        parse_file_header,
    )

    with path.open("rb") as source:
        return parse_file_header(source.read(FILE_HEADER_BYTES), str(path)) is not None


def dumped_frames(source: IO[bytes]) -> Iterator[DumpedFrame]:
    """Every frame that can be found, damaged ones included."""
    from firnmq.engines.media.layouts.shared_file.frames import (
        FILE_HEADER_BYTES,
        parse_file_header,
        scan_frames,
    )

    def read(position: int, size: int) -> bytes:
        source.seek(position)
        return source.read(size)

    header = parse_file_header(read(0, FILE_HEADER_BYTES), str(source.name))
    assert header is not None, "is_shared_file was asked first"
    for found in scan_frames(read, FILE_HEADER_BYTES, header.salt):
        yield DumpedFrame(
            position=found.file_position,
            shard_uid=found.shard_uid,
            segment=found.place & 0x7FFFFFFF,
            slot=found.place >> 31,
            segment_position=found.position,
            is_copy=found.is_copy,
            is_whole=found.is_whole,
            data=read(found.file_position, found.length),
        )
