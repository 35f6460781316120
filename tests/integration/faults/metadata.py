"""Whether metadata, files and databases of a reopened store agree."""

from __future__ import annotations

from itertools import pairwise

from firnmq.engines.catalog.segments import SegmentState
from firnmq.engines.catalog.state import ShardSpec
from firnmq.meta.records import SEGMENTS, SHARDS
from firnmq.server import Store
from firnmq.server.local import LocalStore


def all_shards(local: LocalStore) -> list[ShardSpec]:
    """The shards that the metadata has, those of ranges too."""
    return local.state.shards() + [
        ShardSpec(name=each.name_of(uid), uid=uid, config=config)
        for each, config in local.state.ranges()
        for uid in range(*each.uids)
    ]


def check_metadata(store: Store) -> None:
    """Topics, shards, chains and files agree: each has what the others say, and nothing more."""
    local = store.local
    shards = {name for topic in store.topics() for name in topic.shard_names()}
    assert {spec.name for spec in all_shards(local)} == shards
    chains = {entry.key.split("/")[1] for entry in local.meta.range(SEGMENTS).entries}
    recorded = {entry.key.removeprefix(SHARDS) for entry in local.meta.range(SHARDS).entries}
    assert {spec.name for spec in local.state.shards()} <= recorded <= shards
    assert chains == recorded
    folders = {path.name for path in local.path.glob("segments/*")}
    assert folders <= shards
    for spec in all_shards(local):
        chain = [m for m in local.state.chain(spec.uid) if m.state is not SegmentState.DELETED]
        assert [m.seq for m in chain if m.state is SegmentState.ACTIVE] == [chain[-1].seq]
        assert local.state.active_seq(spec.uid) == chain[-1].seq
        for before, after in pairwise(chain):
            assert before.end_offset == after.base_offset
    for topic in store.topics():
        configs = {s.config for s in all_shards(local) if s.name in topic.shard_names()}
        assert configs == {topic.config}, "options change as one"
