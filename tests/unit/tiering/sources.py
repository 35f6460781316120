"""Made-up segments with their indexes, and the bytes of an .idx object with a count of reads."""

import dataclasses
import random

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.engines.tiering.api import IndexDump, TierCopy
from firnmq.errors import Corruption
from firnmq.index.api import TIMESTAMP_MIN
from firnmq.index.layout import term
from firnmq.tiering.format.index_layout import tag_order
from firnmq.tiering.format.index_object import write_index

KEY = "00000000/c/t-1/1_0/00000000000000000100-00000000000000001100-e1-0123456789abcdef"


def sealed_meta(**changes: object) -> SegmentMeta:
    copy = TierCopy(upload_id="0123456789abcdef", key=KEY, started_ms=1, is_done=True)
    meta = SegmentMeta(
        seq=3,
        base_offset=100,
        end_offset=1_100,
        created_ms=5,
        state=SegmentState.TIERED,
        epoch=1,
        length=1_000_000,
        crc=77,
        tier=copy,
        is_local=False,
    )
    return dataclasses.replace(meta, **changes)  # type: ignore[arg-type]


def random_dump(meta: SegmentMeta, seed: int, *, keys: int = 300, tag_entries: int = 200):
    """An index with all kinds of entries, long terms included."""
    chance = random.Random(seed)
    count = min(meta.end_offset - meta.base_offset, 50)
    offsets = sorted(chance.sample(range(meta.base_offset + 1, meta.end_offset), count - 1))
    positions = sorted(chance.sample(range(1, meta.length), count - 1))
    times = sorted(chance.choices(range(1_000_000, 1_000_400), k=count - 1))
    points = [
        (meta.base_offset, 0, TIMESTAMP_MIN),
        *zip(offsets, positions, times, strict=True),
    ]
    place = lambda: (  # noqa: E731
        chance.randrange(meta.base_offset, meta.end_offset),
        chance.randrange(meta.length),
    )
    words = {chance.randbytes(chance.choice((0, 3, 8, 40, 128, 200))) for _ in range(keys)}
    tags = {}
    for _ in range(tag_entries):
        word = term(b"tag%d" % chance.randrange(7) * chance.choice((1, 1, 1, 40)))
        base, position = place()
        relative = sorted(chance.sample(range(300), chance.randrange(1, 9)))
        tags[word, base] = (word, base, position, relative)
    return IndexDump(
        points=points,
        keys=sorted((term(word), *place()) for word in words),
        tags=[tags[each] for each in sorted(tags, key=lambda each: tag_order(*each))],
        aborted=(AbortedTransaction(7, 110, 120, 121), AbortedTransaction(9, 115, 130, 131)),
        producers=((7, b"seven"), (9, b""), (2**40, b"x" * 50)),
    )


class IndexBytes:
    """An IndexSource over bytes in memory that counts its reads."""

    def __init__(self, data: bytes, head_length: int, *, where: str = KEY + ".idx") -> None:
        self.data = data
        self.length = len(data)
        self.head_length = head_length
        self.where = where
        self.reads: list[tuple[int, int]] = []
        self.distrusted = 0

    @classmethod
    def of(cls, dump: IndexDump, meta: SegmentMeta) -> "IndexBytes":
        return cls(*write_index(dump, meta))

    def read(self, position: int, size: int) -> Buffer:
        self.reads.append((position, size))
        found = self.data[position : position + size]
        if len(found) < size:
            raise Corruption("ends early", where=self.where, position=position + len(found))
        return found

    def distrust(self) -> None:
        self.distrusted += 1
