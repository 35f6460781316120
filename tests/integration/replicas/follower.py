"""A process that stages replicas until it is killed: `python -m tests.integration.replicas.follower
DIRECTORY DURABILITY`. It writes a line for each end that is durable."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from firnmq.config import TopicConfig
from firnmq.disk import Ticket, run_blocking
from firnmq.engines import Acks
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.replicas import Reached, ReplicaEnd, ReplicaId, check_batches
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import FirnError
from firnmq.record import NewRecord, encode, patch_base
from firnmq.server import LocalStore

SHARDS = 3
RECORDS = 3
META = SegmentMeta(seq=0, base_offset=0, created_ms=0, holders=(1, 2))


class Silent:
    """A ReplicaListener of logs that follow."""

    def staged(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        raise AssertionError("nothing leads here")

    durable = staged

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        raise error

    def refusal(self, replica: ReplicaId, acks: Acks) -> FirnError | None:
        return None

    def seal(self, replica: ReplicaId, seal: Seal) -> Seal:
        raise AssertionError("nothing leads here")


def opened(path: Path, durability: str) -> tuple[LocalStore, list[ShardSpec]]:
    """A store with its shards, whose replicas are not open."""
    store = LocalStore(path, background=False)
    config = TopicConfig.from_options({"storage.type": "EngineSegment", "durability": durability})
    if not store.shards.shards():
        names = [f"shard_{number}" for number in range(SHARDS)]
        store.engines[config.storage_type].create_shards(names, config)
    store.replicas.begin(Silent())
    return store, sorted(store.shards.shards(), key=lambda spec: spec.uid)


def batch_at(uid: int, offset: int) -> bytes:
    """What the leader has there: the same in every process."""
    records = [
        NewRecord(value=b"%d %d " % (uid, offset + number) + bytes(300), timestamp_ms=offset)
        for number in range(RECORDS)
    ]
    data = encode(records, now_ms=0)
    patch_base(data, 0, offset, META.leader_epoch)
    return bytes(data)


async def _ticket() -> Ticket[Reached]:
    return Ticket()


def main(path: Path, durability: str) -> None:
    store, specs = opened(path, durability)
    ends = {spec.uid: store.replicas.open(spec, META, leads=False).end for spec in specs}
    while True:
        tickets: dict[int, Ticket[Reached]] = {}
        for spec in specs:
            end = ends[spec.uid]
            checked = check_batches(batch_at(spec.uid, end.offset), end, spec.config, 0)
            tickets[spec.uid] = run_blocking(_ticket())
            high_watermark = max(end.offset - 5 * RECORDS, 0)
            replica = ReplicaId(spec.uid, META.seq)
            store.replicas.stage(replica, checked, high_watermark, tickets[spec.uid])
        for uid, ticket in tickets.items():
            ends[uid] = ticket.wait(30).end
            print(uid, *ends[uid], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
