"""Leaders of new shards: the fewest first, and the same wherever it is computed."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from firnmq.cluster.nodes.placement import Candidate, place
from firnmq.meta.records import Replica

_counts = st.dictionaries(st.integers(1, 50), st.integers(0, 100), min_size=1, max_size=8)


def _candidates(counts: dict[int, int]) -> list[Candidate]:
    return [
        Candidate(replica=Replica(node, 1), leader_count=count) for node, count in counts.items()
    ]


def test_an_empty_cluster_gets_one_each() -> None:
    chosen = place(5, _candidates({3: 0, 1: 0, 2: 0}))
    assert [first.node for (first,) in chosen] == [1, 2, 3, 1, 2]


def test_a_node_that_joins_leads_what_comes_until_it_has_its_share() -> None:
    chosen = place(4, _candidates({1: 4, 2: 4, 3: 0}))
    assert [first.node for (first,) in chosen] == [3, 3, 3, 3]


def test_replicas_are_on_as_many_nodes_and_evenly_spread() -> None:
    chosen = place(6, _candidates({1: 0, 2: 0, 3: 0, 4: 0}), 3)
    assert all(len({each.node for each in replicas}) == 3 for replicas in chosen)
    held = Counter(each.node for replicas in chosen for each in replicas)
    assert max(held.values()) - min(held.values()) <= 1
    led = Counter(replicas[0].node for replicas in chosen)
    assert max(led.values()) - min(led.values()) <= 1


def test_replicas_are_in_different_racks_as_far_as_there_are_any() -> None:
    candidates = [
        Candidate(replica=Replica(node, 1), leader_count=0, rack=rack)
        for node, rack in ((1, "a"), (2, "a"), (3, "b"), (4, "b"))
    ]
    racks = {each.replica.node: each.rack for each in candidates}
    for replicas in place(8, candidates, 2):
        assert {racks[each.node] for each in replicas} == {"a", "b"}
    for replicas in place(8, candidates, 3):
        assert {racks[each.node] for each in replicas} == {"a", "b"}


@given(_counts, st.integers(0, 200))
def test_nothing_is_more_even(counts: dict[int, int], count: int) -> None:
    chosen = place(count, _candidates(counts))
    given_to = Counter(first.node for (first,) in chosen)

    assert given_to.total() == count
    after = {node: counts[node] + given_to[node] for node in counts}
    # A node that got one has no more than any other, but for the one itself.
    assert all(after[node] - 1 <= min(after.values()) for node in given_to)


@given(_counts, st.integers(0, 50), st.randoms())
def test_the_order_of_candidates_does_not_matter(
    counts: dict[int, int], count: int, random: Random
) -> None:
    candidates = _candidates(counts)
    expected = place(count, candidates)
    random.shuffle(candidates)
    assert place(count, candidates) == expected
