"""Where leaders should be: even, not on cordoned or full nodes, with no more moves than needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firnmq.cluster.nodes.balance import NodeLoad, next_leader, plan_moves


def _load(node: int, count: int, pinned: int = 0, **fields: object) -> NodeLoad:
    movable = [f"{node}-{number}" for number in range(count - pinned)]
    return NodeLoad(node=node, leader_count=count, movable=movable, **fields)  # type: ignore[arg-type]


def test_a_node_that_joins_gets_its_share_and_no_more() -> None:
    loads = [_load(1, 8), _load(2, 8), _load(3, 8), _load(4, 0)]
    moves = plan_moves(loads, 100)
    assert [each.target for each in moves] == [4] * 6
    assert sorted(each.source for each in moves) == [1, 1, 2, 2, 3, 3]


def test_an_even_cluster_stays() -> None:
    assert plan_moves([_load(1, 5), _load(2, 4), _load(3, 5)], 100) == []
    assert next_leader(1, [_load(1, 5), _load(2, 4)]) is None
    assert next_leader(1, [_load(1, 5), _load(2, 3), _load(3, 3)]) == 2


def test_a_cordoned_node_gives_everything_and_gets_nothing() -> None:
    loads = [_load(1, 3, is_cordoned=True), _load(2, 9), _load(3, 8)]
    assert [(each.source, each.target) for each in plan_moves(loads, 100)] == [
        *((1, 3), (1, 2), (1, 3)),
    ]
    assert next_leader(1, loads) == 3
    assert next_leader(2, [_load(1, 0, is_cordoned=True), _load(2, 9)]) is None
    assert plan_moves([_load(1, 3, is_cordoned=True)], 100) == []


def test_pinned_shards_count_and_stay() -> None:
    moves = plan_moves([_load(1, 10, pinned=9), _load(2, 0)], 100)
    assert [(each.shard, each.target) for each in moves] == [("1-0", 2)]


def test_room_and_bytes_decide_between_equals() -> None:
    loads = [
        _load(1, 9),
        _load(2, 0, free_bytes=1000),
        _load(3, 1, stored_bytes=50, free_bytes=10**12),
        _load(4, 1, stored_bytes=40, free_bytes=10**12),
    ]
    assert next_leader(1, loads) == 4
    # A full disk is better than none.
    assert next_leader(1, loads[:2]) == 2


def test_a_source_alone_gives() -> None:
    loads = [_load(1, 9), _load(2, 9), _load(3, 0)]
    assert {each.source for each in plan_moves(loads, 100, source=2)} == {2}
    assert len(plan_moves(loads, 3)) == 3


@given(
    st.dictionaries(
        st.integers(1, 9), st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1
    )
)
def test_the_outcome_is_as_even_as_it_can_be(counts: dict[int, tuple[int, int]]) -> None:
    loads = [_load(node, movable + pinned, pinned) for node, (movable, pinned) in counts.items()]
    after = {node: sum(each) for node, each in counts.items()}
    left = {node: each[0] for node, each in counts.items()}
    moves = plan_moves(loads, 10_000)
    for move in moves:
        after[move.source] -= 1
        left[move.source] -= 1
        after[move.target] += 1
    assert len({move.shard for move in moves}) == len(moves)
    assert all(after[node] - min(after.values()) < 2 for node in left if left[node])
