"""A log as operators and planners of reads see it."""

from __future__ import annotations

import os

from firnmq.engines.api import ProducerStatus, ShardStatus, Survey, SurveyedSegment
from firnmq.engines.catalog.segments import Segment
from firnmq.engines.deletion.deletions import Deletions, merged_keys
from firnmq.engines.shardlog.log import ShardLog
from firnmq.engines.shardlog.view import View, length_of


def status_of(log: ShardLog, failure: str | None) -> ShardStatus:
    view = log.view
    sealed = sum(each.meta.length for each in view.segments if each.meta.is_sealed)
    return ShardStatus(
        spec=log.spec,
        start_offset=view.start_offset,
        end_offset=view.end_offset,
        stable_offset=view.stable_offset,
        length_bytes=sealed + view.active_length,
        max_timestamp=max(
            view.active_max_timestamp,
            *(each.meta.max_timestamp for each in view.segments),
        ),
        segments=tuple(each.meta for each in view.segments),
        failure=failure,
        quorum_mark=None if log.replica is None else log.replica.quorum_mark,
    )


def producers_of(log: ShardLog) -> list[ProducerStatus]:
    with log.lock:
        return [
            ProducerStatus(
                producer_id=producer_id,
                epoch=each.epoch,
                last_sequence=each.batches[-1].last_sequence if each.batches else -1,
                stored_ms=each.stored_ms,
                transaction_start=-1 if each.transaction_start is None else each.transaction_start,
            )
            for producer_id, each in log.producers
        ]


def survey_of(log: ShardLog, view: View, before: Deletions) -> Survey:
    """`before` are the log's deletions from before the view, which its start may have passed since.
    They are looked at after the view: deletions that came in between hide what it shows. Those
    that the log hides are taken first, then those that it hid before."""
    now = log.deletions
    hidden = frozenset(before.offsets | now.offsets)
    hidden_keys = merged_keys(dict(before.keys), dict(now.keys))
    retired = log.backend.state.retired(log.spec.uid)
    if retired is not None:
        hidden |= retired.holes
        hidden_keys = merged_keys(hidden_keys, retired.dead_keys)
    return Survey(
        spec=log.spec,
        start_offset=view.start_offset,
        end_offset=view.end_offset,
        stable_offset=view.stable_offset,
        segments=tuple(_surveyed(log, view, segment) for segment in view.segments),
        holes=hidden,
        dead_keys=hidden_keys,
        aborted=tuple(view.aborted.overlapping(view.start_offset, view.stable_offset)),
        retired=None if retired is None else retired.number,
    )


def _surveyed(log: ShardLog, view: View, segment: Segment) -> SurveyedSegment:
    meta, index, cold = segment.meta, segment.index, log.backend.cold
    if not (meta.is_local or meta.holders) and cold is not None:
        index = cold.open_index(log.spec, meta, fetches=False)  # Planning reads no records.
    return SurveyedSegment(
        meta,
        meta.end_offset if meta.is_sealed else view.end_offset,
        length_of(view, segment),
        os.path.abspath(segment.bytes.where) if segment.bytes.is_file else None,
        index,
    )
