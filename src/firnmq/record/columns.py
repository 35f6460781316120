"""Decoded records as columns in Arrow's memory layout, readable with and without pyarrow."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from firnmq.record.types import Headers, Record

if TYPE_CHECKING:
    import pyarrow as pa

    from firnmq.record.codec import BinaryViews

Bytes: TypeAlias = "bytes | bytearray | memoryview | array[int]"
"""Memory of a column: whatever the codec or pyarrow made it in."""


def is_set(bitmap: Bytes | None, index: int) -> bool:
    """Whether a validity bitmap marks an entry as present; no bitmap means all are."""
    return bitmap is None or bool(memoryview(bitmap)[index >> 3] >> (index & 7) & 1)


@dataclass(slots=True, eq=False)
class BinaryColumn:
    """Byte strings, some of which may be null: entry i is `data[bounds[i]:bounds[i + 1]]`."""

    length: int
    bounds_buffer: Bytes
    """int32, one more than there are entries."""
    data: Bytes
    """uint8."""
    validity: Bytes | None
    """One bit per entry, least significant first; None if nothing is null."""
    null_count: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> bytes | None:
        if not 0 <= index < self.length:
            raise IndexError(index)
        if not is_set(self.validity, index):
            return None
        bounds = self.bounds
        return bytes(memoryview(self.data)[bounds[index] : bounds[index + 1]])

    @property
    def bounds(self) -> memoryview:
        return int32_view(self.bounds_buffer)

    def entries(self) -> list[bytes | None]:
        """All entries."""
        data = bytes(self.data)
        bounds = self.bounds.tolist()
        entries: list[bytes | None] = [data[a:b] for a, b in itertools.pairwise(bounds)]
        if self.null_count and self.validity is not None:
            validity = memoryview(self.validity)
            for index in range(len(entries)):
                if not validity[index >> 3] >> (index & 7) & 1:
                    entries[index] = None
        return entries


@dataclass(slots=True, eq=False)
class Columns:
    """The selected records of some batches. Nothing in it changes once it is made.

    The fields are the raw buffers, since making views of all of them would cost more than
    decoding a small batch; the properties give views. A column that was not asked for is None,
    and records then show None or an empty tuple in its place.
    """

    length: int
    offset_buffer: Bytes
    """int64."""
    timestamp_buffer: Bytes
    """int64, milliseconds."""
    keys: BinaryColumn | None
    values: BinaryColumn | BinaryViews | None
    """Views if decoding did not copy the values, but refers to the buffers they came in."""
    header_bounds_buffer: Bytes | None
    """int32: record i has the headers from bound i to bound i + 1."""
    header_names: BinaryColumn | None
    header_values: BinaryColumn | None
    tag_bounds_buffer: Bytes | None
    """int32: record i has the tags from bound i to bound i + 1."""
    tags: BinaryColumn | None
    expiry_buffer: Bytes | None
    """int64, milliseconds; None if no record expires."""
    expiry_validity: Bytes | None
    next_offset: int
    """Where to go on: every record below was examined, whether it was taken or not."""
    is_limited: bool
    """A limit of the selection ended the decoding before the batches did."""
    encoded_bytes: int
    """Sum of the encoded sizes of the records."""

    def __len__(self) -> int:
        return self.length

    @property
    def offsets(self) -> memoryview:
        return int64_view(self.offset_buffer)

    @property
    def timestamps(self) -> memoryview:
        return int64_view(self.timestamp_buffer)

    @property
    def header_bounds(self) -> memoryview | None:
        buffer = self.header_bounds_buffer
        return None if buffer is None else int32_view(buffer)

    @property
    def tag_bounds(self) -> memoryview | None:
        buffer = self.tag_bounds_buffer
        return None if buffer is None else int32_view(buffer)

    @property
    def expiries(self) -> memoryview | None:
        """Expiry times, where `expiry_validity` says that there is one."""
        return None if self.expiry_buffer is None else int64_view(self.expiry_buffer)

    def expire_at_ms(self, index: int) -> int | None:
        """When the record expires, if it does."""
        if self.expiry_buffer is None or not is_set(self.expiry_validity, index):
            return None
        return int(int64_view(self.expiry_buffer)[index])

    def record(self, index: int) -> Record:
        """One record as a value."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        return Record(
            offset=self.offsets[index],
            timestamp_ms=self.timestamps[index],
            key=None if self.keys is None else self.keys[index],
            value=None if self.values is None else self.values[index],
            headers=self._headers(index),
            tags=self._tags(index),
            expire_at_ms=self.expire_at_ms(index),
        )

    def records(self) -> list[Record]:
        """All records as values."""
        nothing: list[bytes | None] = [None] * self.length
        return [
            Record(
                offset=offset,
                timestamp_ms=timestamp_ms,
                key=key,
                value=value,
                headers=headers,
                tags=tags,
                expire_at_ms=expire_at_ms,
            )
            for offset, timestamp_ms, key, value, headers, tags, expire_at_ms in zip(
                self.offsets.tolist(),
                self.timestamps.tolist(),
                nothing if self.keys is None else self.keys.entries(),
                nothing if self.values is None else self.values.entries(),
                self._all_headers(),
                self._all_tags(),
                self._all_expiries(),
                strict=True,
            )
        ]

    def to_arrow(self, *, views: bool = False) -> pa.RecordBatch:
        """A pyarrow RecordBatch of the same memory, but for values: they are copied to be binary.

        With `views`, values are binary views wherever decoding left them in place, and no byte is
        copied. Not everything that reads Arrow can read views.
        """
        from firnmq.record.arrow import to_arrow

        return to_arrow(self, views=views)

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> Columns:
        """Columns from a table made by `to_arrow`, in whatever chunks and slices it has become."""
        from firnmq.record.arrow import from_arrow

        return from_arrow(table)

    def _headers(self, index: int) -> Headers:
        names, values, bounds = self.header_names, self.header_values, self.header_bounds
        if names is None or values is None or bounds is None:
            return ()
        return tuple(
            (_text(names[entry]), values[entry])
            for entry in range(bounds[index], bounds[index + 1])
        )

    def _tags(self, index: int) -> tuple[str, ...]:
        tags, bounds = self.tags, self.tag_bounds
        if tags is None or bounds is None:
            return ()
        return tuple(_text(tags[entry]) for entry in range(bounds[index], bounds[index + 1]))

    def _all_headers(self) -> list[Headers]:
        names, values, bounds = self.header_names, self.header_values, self.header_bounds
        if names is None or values is None or bounds is None or len(names) == 0:
            return [()] * self.length
        pairs = list(zip(map(_text, names.entries()), values.entries(), strict=True))
        return [tuple(pairs[a:b]) for a, b in itertools.pairwise(bounds.tolist())]

    def _all_tags(self) -> list[tuple[str, ...]]:
        tags, bounds = self.tags, self.tag_bounds
        if tags is None or bounds is None or len(tags) == 0:
            return [()] * self.length
        texts = [_text(raw) for raw in tags.entries()]
        return [tuple(texts[a:b]) for a, b in itertools.pairwise(bounds.tolist())]

    def _all_expiries(self) -> list[int | None]:
        if self.expiry_buffer is None:
            return [None] * self.length
        return [self.expire_at_ms(index) for index in range(self.length)]


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode("utf-8", "surrogateescape")


def int64_view(buffer: Bytes) -> memoryview:
    """A buffer's bytes as 64-bit numbers."""
    return memoryview(buffer).cast("B").cast("q")


def int32_view(buffer: Bytes) -> memoryview:
    """A buffer's bytes as 32-bit numbers."""
    return memoryview(buffer).cast("B").cast("i")


NO_ENTRIES: Final = BinaryColumn(
    length=0, bounds_buffer=bytes(4), data=b"", validity=None, null_count=0
)
"""The entries of a list column in which every list is empty."""


def columns_of_records(records: Sequence[Record]) -> Columns:
    """Columns of records that are values already, for sources that have no batches."""
    headers = [header for record in records for header in record.headers]
    tags = [tag for record in records for tag in record.tags]
    expiries = [record.expire_at_ms for record in records]
    has_expiry = any(expiry is not None for expiry in expiries)
    return Columns(
        length=len(records),
        offset_buffer=array("q", [record.offset for record in records]),
        timestamp_buffer=array("q", [record.timestamp_ms for record in records]),
        keys=_binary_column([record.key for record in records]),
        values=_binary_column([record.value for record in records]),
        header_bounds_buffer=_bounds([len(record.headers) for record in records]),
        header_names=_binary_column([_raw(name) for name, _ in headers]),
        header_values=_binary_column([value for _, value in headers]),
        tag_bounds_buffer=_bounds([len(record.tags) for record in records]),
        tags=_binary_column([_raw(tag) for tag in tags]),
        expiry_buffer=array("q", [expiry or 0 for expiry in expiries]) if has_expiry else None,
        expiry_validity=_bitmap(expiries),
        next_offset=records[-1].offset + 1 if records else 0,
        is_limited=False,
        encoded_bytes=0,
    )


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _bounds(lengths: Sequence[int]) -> array[int]:
    return array("i", itertools.accumulate(lengths, initial=0))


def _bitmap(entries: Sequence[object]) -> bytearray | None:
    if None not in entries:
        return None
    bitmap = bytearray((len(entries) + 7) >> 3)
    for index, entry in enumerate(entries):
        if entry is not None:
            bitmap[index >> 3] |= 1 << (index & 7)
    return bitmap


def _binary_column(entries: Sequence[bytes | None]) -> BinaryColumn:
    return BinaryColumn(
        length=len(entries),
        bounds_buffer=_bounds([len(entry or b"") for entry in entries]),
        data=b"".join(entry or b"" for entry in entries),
        validity=_bitmap(entries),
        null_count=sum(entry is None for entry in entries),
    )
