"""Which Parquet files may hold a key: their Bloom filters, read without reading the files.

A file's bounds say little about keys that are spread evenly. Its filters say for each group of rows
that a key is not there, or that it probably is. Two small reads per file are enough.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh64_intdigest

from firnmq.disk.files import Buffer
from firnmq.errors import Corruption
from firnmq.tiering.stores import ObjectStore

_FOOTER_GUESS: Final = 64 * 1024
_MAGIC: Final = b"PAR1"
_BLOCK: Final = struct.Struct("<8I")
_SALTS: Final = (
    *(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D),
    *(0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31),
)
"""One per word of a block, as the format has them."""


def key_hash(key: bytes) -> int:
    """The hash of Parquet's filters: XXH64 with the seed 0."""
    return xxh64_intdigest(key)


def may_hold_key(store: ObjectStore, path: str, size: int, keys: Iterable[bytes]) -> bool:
    """Whether the file may have a row with one of the keys. True where it has no filters."""
    return may_hold_hash(store, path, size, [key_hash(key) for key in keys])


def may_hold_hash(store: ObjectStore, path: str, size: int, hashes: Sequence[int]) -> bool:
    """The same for keys whose hashes are known, where many files are asked for them."""
    footer = read_footer(store, path, size)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunk = next(
            (
                group.column(index)
                for index in range(group.num_columns)
                if group.column(index).path_in_schema == "key"
            ),
            None,
        )
        if chunk is None or chunk.bloom_filter_offset is None or not chunk.bloom_filter_length:
            return True
        raw = store.get_range(path, chunk.bloom_filter_offset, chunk.bloom_filter_length)
        bits = _bitset(raw, path)
        if any(_is_in(bits, each) for each in hashes):
            return True
    return False


def read_footer(store: ObjectStore, path: str, size: int) -> pq.FileMetaData:
    """A Parquet file's metadata, usually in one read."""
    length = min(size, _FOOTER_GUESS)
    tail = bytes(store.get_range(path, size - length, length))
    if length < 12 or tail[-4:] != _MAGIC:
        raise Corruption("does not end as a Parquet file does", where=path)
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if needed > size - 4:
        raise Corruption("its footer is longer than the file", where=path)
    if needed > length:
        tail = bytes(store.get_range(path, size - needed, needed))
    return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-needed:]))


def _bitset(raw: Buffer, path: str) -> memoryview:
    """The filter behind its header, whose first field is how many bytes it has."""
    view = memoryview(raw).cast("B")
    if not view or view[0] != 0x15:
        raise Corruption("has a Bloom filter of an unknown kind", where=path)
    number = shift = 0
    for position in range(1, min(len(view), 7)):
        number |= (view[position] & 0x7F) << shift
        shift += 7
        if not view[position] & 0x80:
            break
    length = number >> 1
    if length % 32 or not 32 <= length < len(view):
        raise Corruption("has a Bloom filter of an impossible length", where=path)
    return view[len(view) - length :]


def _is_in(bits: memoryview, number: int) -> bool:
    block = ((number >> 32) * (len(bits) // 32)) >> 32
    low = number & 0xFFFFFFFF
    words = _BLOCK.unpack_from(bits, block * 32)
    return all(
        word >> (((low * salt) & 0xFFFFFFFF) >> 27) & 1
        for word, salt in zip(words, _SALTS, strict=True)
    )
