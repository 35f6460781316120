"""Judges batches that another node sent, before they are given to a lane."""

from __future__ import annotations

from firnmq.config import TopicConfig
from firnmq.disk.files import Buffer
from firnmq.engines.shardlog.append import PreparedBatch, first_expiry, terms_of
from firnmq.engines.shardlog.replica import Checked, ReplicaEnd
from firnmq.engines.shardlog.tail import chained
from firnmq.errors import Corruption
from firnmq.record import BatchStream, parse_header


def check_batches(
    data: Buffer, start: ReplicaEnd, config: TopicConfig, leader_epoch: int
) -> Checked:
    """The batches in `data`, which must be whole, follow each other from `start` on, be of this
    leader, and match their CRCs; Corruption otherwise. The buffer must not change any more; one
    that cannot be written to is copied.

    Keys and tags are collected here, in the caller's thread, as for a client's batch.
    """
    if memoryview(data).readonly:
        data = bytearray(data)  # Staging numbers batches in place, with what they have already.
    stream = BatchStream(offset=start.offset, end_position=len(data), verify=True)
    run = stream.judge(data)
    if run is None or stream.stop is not None or stream.position != len(data):
        reason = stream.stop.text if stream.stop is not None else "there is no batch"
        raise Corruption(reason, where="batches from another replica", position=stream.position)
    batches = []
    crc = start.crc
    for entry in run.entries:
        batch = run.batch(entry)
        header = parse_header(batch)
        if header.leader_epoch != leader_epoch:
            raise Corruption(
                f"a batch is of leader epoch {header.leader_epoch}, not {leader_epoch}",
                where="batches from another replica",
                position=entry.position,
            )
        crc = chained(crc, batch)
        batches.append(
            PreparedBatch(batch, header, terms_of(batch, config), first_expiry(batch, config))
        )
    end = ReplicaEnd(run.entries[-1].last_offset + 1, crc)
    return Checked(start, end, tuple(batches), leader_epoch, len(data))
