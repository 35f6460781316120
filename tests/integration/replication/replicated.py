"""Three or more real nodes with a replicated topic, as their metadata and their files show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from firnmq.cluster.replication.driving.control import REPLICATION_CONTROLLER_KEY
from firnmq.engines.catalog.segments import SegmentState
from firnmq.meta import SqliteMetaStore
from firnmq.meta.records import (
    SEGMENTS,
    SegmentRecord,
    decode,
    segment_seq_of,
    shard_of_segment,
)
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until

SHORT_SEGMENTS = {"segment.bytes": "65536"}
_SEALED = (SegmentState.SEALED, SegmentState.TIERED)


def create(nodes: Nodes, topic: str, partitions: int, factor: int, **options: str) -> None:
    config = {name.replace("_", "."): value for name, value in options.items()}
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, partitions, factor, config=config)]).values()
    made.result(WAIT_S)


@contextmanager
def metadata(nodes: Nodes) -> Iterator[SqliteMetaStore]:
    with closing(SqliteMetaStore(nodes.directory / "cluster.db", is_shared=True)) as store:
        yield store


def segments(nodes: Nodes) -> dict[tuple[str, int], SegmentRecord]:
    """Every segment by shard and number."""
    with metadata(nodes) as store:
        return {
            (shard_of_segment(entry.key), segment_seq_of(entry.key)): decode(entry, SegmentRecord)
            for entry in store.range(SEGMENTS).entries
        }


def controller(nodes: Nodes) -> int | None:
    """The node that controls replication now."""
    with metadata(nodes) as store:
        entry = store.get(REPLICATION_CONTROLLER_KEY)
    return None if entry is None else int(entry.value)


def wait_in_sync(nodes: Nodes) -> None:
    """Returns once every segment has all of its replicas in sync, or verified."""

    def is_whole() -> bool:
        return all(
            {each.node for each in record.isr} == set(record.replicas)
            for record in segments(nodes).values()
            if record.state is not SegmentState.DELETED
        )

    wait_until(is_whole, "every replica is in sync")


def check_files(nodes: Nodes) -> int:
    """Replicas of sealed segments have the bytes that their record says; returns how many there
    are."""
    count = 0
    for (shard, seq), record in segments(nodes).items():
        if record.state not in _SEALED:
            continue
        for replica in record.isr:
            path = _file(nodes[replica.node].data, shard, record)
            data = path.read_bytes()
            # A node that was killed may have left preallocated zeros behind the last batch.
            content, rest = data[: record.length], data[record.length :]
            assert len(content) == record.length, f"{path}: {len(data):,} of {record.length:,}"
            assert crc32c(content) == record.crc, f"{path}: segment {seq}"
            assert not any(rest), f"{path}: more than segment {seq}"
            count += 1
    return count


def _file(data: Path, shard: str, record: SegmentRecord) -> Path:
    return data / "segments" / shard / f"{record.start:020d}.log"
