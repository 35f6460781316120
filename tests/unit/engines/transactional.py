"""A transactional producer for tests: batches with its id, epoch and sequence, and markers."""

from __future__ import annotations

from firnmq.disk import run_blocking
from firnmq.engines import Appended
from firnmq.engines.api import RawPage
from firnmq.record import NewRecord, encode, parse_header, with_header
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL
from tests.conformance.lab import EVERYTHING, Shard


class TransactionalProducer:
    """Counts its sequence per shard name, as a client does per partition."""

    def __init__(self, producer_id: int, epoch: int = 0) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._sequences: dict[str, int] = {}

    def batch(self, shard: Shard, *records: NewRecord, transactional: bool = True) -> bytes:
        sequence = self._sequences.get(shard.name, 0)
        self._sequences[shard.name] = sequence + len(records)
        made = encode(
            records,
            now_ms=shard.lab.clock.now_ms(),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        if transactional:
            header = parse_header(made)
            with_header(
                made, header._replace(attributes=header.attributes | ATTRIBUTE_TRANSACTIONAL)
            )
        return bytes(made)

    def write(self, shard: Shard, *values: bytes, **fields: object) -> Appended:
        records = [NewRecord(value=value, **fields) for value in values]  # type: ignore[arg-type]
        return shard.append_raw(self.batch(shard, *records))

    def commit(self, shard: Shard) -> int:
        return self._end(shard, is_commit=True)

    def abort(self, shard: Shard) -> int:
        return self._end(shard, is_commit=False)

    def _end(self, shard: Shard, *, is_commit: bool) -> int:
        append = shard.engine.append_marker(
            shard.name, self.producer_id, self.epoch, is_commit=is_commit
        )
        return run_blocking(append).base_offset


def committed(shard: Shard, offset: int | None = None, max_bytes: int = EVERYTHING) -> RawPage:
    """What a client that wants only what is committed fetches."""
    start = shard.start if offset is None else offset
    return shard.engine.read_batches(shard.name, start, max_bytes=max_bytes, committed=True)


def aborted(page: RawPage) -> list[tuple[int, int]]:
    return [(each.producer_id, each.first_offset) for each in page.aborted]


def stable(shard: Shard) -> int:
    return shard.engine.stable_offset(shard.name)
