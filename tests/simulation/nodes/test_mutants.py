"""Each rule is needed: the code without it fails in one of a few schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from firnmq.adapter import TopicCatalog
from firnmq.adapter.forwarding import ClusterDriver
from firnmq.cluster.nodes.claims import TopicClaims
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.errors import NotLeader, PeerTimedOut
from firnmq.meta import Compare, MetaCache, MetaShards, Session
from firnmq.meta.records import COORDINATORS, NEXT_PRODUCER_ID, NEXT_UID
from tests.simulation.nodes.store import SimStore
from tests.simulation.nodes.world import World

SCHEDULES_MAX = 150
Patch = pytest.MonkeyPatch


def _without_compares_of(patch: Patch, *prefixes: str) -> None:
    txn = SimStore.txn

    def loose(
        self: SimStore,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        kept = [each for each in compares if not each.key.startswith(prefixes)]
        return txn(self, kept, puts, deletes, session)

    patch.setattr(SimStore, "txn", loose)


def a_claim_stays_where_its_end_was_not_stored(patch: Patch) -> None:
    patch.setattr(TopicClaims, "_leave", lambda self, key, value: None)


def a_topic_is_changed_without_a_claim(patch: Patch) -> None:
    @contextmanager
    def unclaimed(self: Cluster, name: str, refusal: object) -> Iterator[None]:
        yield

    patch.setattr(Cluster, "claim_topic", unclaimed)


def shards_are_made_for_a_topic_that_is_removed(patch: Patch) -> None:
    add_shards = MetaShards.add_shards

    def add(self: MetaShards, *arguments: Any, topic: object, **named: Any) -> Any:
        return add_shards(self, *arguments, **named)

    patch.setattr(MetaShards, "add_shards", add)


def a_topic_is_removed_that_has_become_ready(patch: Patch) -> None:
    begin = TopicCatalog.begin_removal
    patch.setattr(
        TopicCatalog, "begin_removal", lambda self, topic, *, unless_ready=False: begin(self, topic)
    )


def a_cache_misses_a_revision(patch: Patch) -> None:
    drop = MetaCache._drop_watch

    def forgetful(self: MetaCache) -> None:
        drop(self)
        self._revision += 1

    patch.setattr(MetaCache, "_drop_watch", forgetful)


def a_cache_keeps_what_was_deleted_before_a_snapshot(patch: Patch) -> None:
    difference = MetaCache._difference
    patch.setattr(
        MetaCache,
        "_difference",
        lambda self, snapshot: tuple(
            each for each in difference(self, snapshot) if each.entry is not None
        ),
    )


def a_cache_tells_no_listener_of_a_snapshot(patch: Patch) -> None:
    start_over, tell = MetaCache._log_and_start_over, MetaCache._tell

    def silent(self: MetaCache) -> None:
        patch.setattr(self, "_tell", lambda events: None)
        start_over(self)
        patch.setattr(self, "_tell", lambda events: tell(self, events))

    patch.setattr(MetaCache, "_log_and_start_over", silent)


def numbers_of_shards_are_given_twice(patch: Patch) -> None:
    _without_compares_of(patch, NEXT_UID)


def producer_ids_are_given_twice(patch: Patch) -> None:
    _without_compares_of(patch, NEXT_PRODUCER_ID)


def a_slot_has_two_coordinators(patch: Patch) -> None:
    _without_compares_of(patch, COORDINATORS)


def an_append_of_unknown_outcome_is_sent_again(patch: Patch) -> None:
    ask = ClusterDriver._ask

    async def insist(self: ClusterDriver, *arguments: Any) -> Any:
        try:
            return await ask(self, *arguments)
        except PeerTimedOut:
            return await ask(self, *arguments)

    patch.setattr(ClusterDriver, "_ask", insist)


def an_unknown_outcome_is_called_a_failure(patch: Patch) -> None:
    ask = ClusterDriver._ask

    async def hasty(self: ClusterDriver, operation: Any, shard: str, *arguments: Any) -> Any:
        try:
            return await ask(self, operation, shard, *arguments)
        except PeerTimedOut:
            raise NotLeader(shard, self._cluster.node, None) from None

    patch.setattr(ClusterDriver, "_ask", hasty)


def a_topic_is_ready_before_its_shards(patch: Patch) -> None:
    begin = TopicCatalog.begin_creation

    def hasty(self: TopicCatalog, topic: Any) -> None:
        begin(self, topic)
        self.become_ready(topic)

    patch.setattr(TopicCatalog, "begin_creation", hasty)


MUTANTS: list[Callable[[Patch], None]] = [
    a_claim_stays_where_its_end_was_not_stored,
    shards_are_made_for_a_topic_that_is_removed,
    a_topic_is_removed_that_has_become_ready,
    a_cache_misses_a_revision,
    a_cache_keeps_what_was_deleted_before_a_snapshot,
    a_cache_tells_no_listener_of_a_snapshot,
    numbers_of_shards_are_given_twice,
    producer_ids_are_given_twice,
    a_slot_has_two_coordinators,
    an_append_of_unknown_outcome_is_sent_again,
    an_unknown_outcome_is_called_a_failure,
    a_topic_is_ready_before_its_shards,
    a_topic_is_changed_without_a_claim,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_code_without_the_rule_fails(
    mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    for seed in range(SCHEDULES_MAX):
        try:
            World(seed).run()
        except AssertionError:
            return
    pytest.fail(f"{SCHEDULES_MAX} schedules, and nothing is wrong with any")
