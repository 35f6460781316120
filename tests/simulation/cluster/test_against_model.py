"""The core decides as the model does, and the model's invariants hold in simulated worlds.

The model (`tests/simulation/replication`) is searched exhaustively; these tests tie the core to it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from firnmq.cluster.replication import Seal
from firnmq.cluster.replication.leading.insync import InSyncReplicas
from firnmq.cluster.replication.leading.marks import Marks, Progress
from firnmq.cluster.replication.messages import FenceAnswer
from firnmq.cluster.replication.values import (
    Crc,
    Fence,
    Incarnation,
    LeaderEpoch,
    Member,
    MonotonicMs,
    NodeId,
    Placement,
    Point,
    RecordState,
    ReplicatedSegment,
    ReplicationConfig,
    Revision,
    SegmentId,
)
from firnmq.ids import Offset, SegmentSeq, ShardUid
from tests.simulation.cluster.simulation import Simulation
from tests.simulation.cluster.world import World
from tests.simulation.replication import model

CASES = 3_000
NOW = MonotonicMs(1_000)


def random_case(rng: random.Random) -> tuple[ReplicatedSegment, model.Model, Marks]:
    """A record, a model of its size, and a leader's knowledge of its followers."""
    size = model.Size(replicas=rng.choice([2, 3, 4, 5]), min_in_sync=1)
    nodes = [NodeId(node) for node in range(size.replicas)]
    opened = tuple(Member(node, Incarnation(rng.randint(1, 2))) for node in nodes)
    placement = Placement(leader=NodeId(model.LEADER), members=opened, in_sync=opened)
    segment = SegmentId(ShardUid(1), SegmentSeq(0))
    record = ReplicatedSegment.open(segment, Offset(0), LeaderEpoch(0), placement)
    record = record.with_isr(random_isr(rng, opened))
    marks = Marks(record, Offset(rng.randint(0, 5)))
    for node in nodes[1:]:
        if rng.random() < 0.8:
            incarnation = rng.randint(1, 3)
            marks.followers[node] = Progress(
                incarnation=Incarnation(incarnation),
                continuous_since=Incarnation(rng.randint(1, incarnation)),
                end=Offset(rng.randint(0, 5)),
                crc=Crc(0),
                wants=None,
                heard_ms=NOW,
                leader_end_then=Offset(0),
            )
    return record, model.Model(size), marks


def random_isr(rng: random.Random, opened: tuple[Member, ...]) -> list[Member]:
    isr = [opened[0]]
    for member in opened[1:]:
        if rng.random() < 0.7:
            isr.append(Member(member.node, Incarnation(rng.randint(member.incarnation, 3))))
    return isr


def as_members(isr: tuple[Member, ...]) -> model.Members:
    return frozenset((int(member.node), int(member.incarnation)) for member in isr)


def as_world(model_: model.Model, record: ReplicatedSegment, leader: model.Leader) -> model.World:
    opened = tuple(int(member.incarnation) for member in record.opened)
    stored = model.Record(False, 0, 0, as_members(record.isr), opened)
    return model_.start()._replace(record=stored, leader=leader)


def as_leader(
    record: ReplicatedSegment, marks: Marks, proposed: tuple[Member, ...] | None
) -> model.Leader:
    reports = tuple(
        model.Report(each.end, each.incarnation, each.continuous_since)
        if (each := marks.followers.get(node)) is not None
        else None
        for node in record.replicas
    )
    members = None if proposed is None else as_members(proposed)
    return model.Leader(True, as_members(record.isr), 0, members, reports)


@pytest.mark.parametrize("seed", range(4))
def test_marks_are_those_of_the_model(seed: int) -> None:
    rng = random.Random(seed)
    moved = 0
    for _ in range(CASES):
        record, model_, marks = random_case(rng)
        proposed = None
        if rng.random() < 0.5:
            proposed = tuple(sorted(random_isr(rng, record.opened)))
        leader = as_leader(record, marks, proposed)
        world = as_world(model_, record, leader)
        end = marks.durable_end
        assert marks.lowest_end({*record.isr, *(proposed or ())}) == model_._high_watermark(
            leader, end
        )
        assert marks.majority_end(record) == model_._quorum_mark(world, end)
        moved += marks.majority_end(record) > 0
    assert moved > CASES // 10


@pytest.mark.parametrize("seed", range(4))
def test_replicas_are_let_in_as_by_the_model(seed: int) -> None:
    rng = random.Random(seed)
    admitted = 0
    for _ in range(CASES):
        record, model_, marks = random_case(rng)
        marks.high_watermark = Offset(rng.randint(0, 3))
        marks.quorum_mark = Offset(rng.randint(0, 4))
        policy = InSyncReplicas(ReplicationConfig(min_in_sync=1), record.leader)
        policy.listed(record.isr, NOW)
        leader = as_leader(record, marks, None)._replace(
            high_watermark=marks.high_watermark, quorum_mark=marks.quorum_mark
        )
        expected = set(model_._proposals(leader))
        for node, progress in marks.followers.items():
            member = Member(node, progress.incarnation)
            proposal = policy.admission(record, member, marks)
            if proposal is not None:
                assert as_members(proposal) in expected
                admitted += 1
            else:
                others = {each for each in record.isr if each.node != node}
                isr = as_members((*others, member))
                assert isr not in expected or member in record.isr
    assert admitted > CASES // 10


@pytest.mark.parametrize("seed", range(4))
def test_an_end_is_decided_as_by_the_model(seed: int) -> None:
    rng = random.Random(seed)
    decided = 0
    for _ in range(CASES):
        record, model_, _ = random_case(rng)
        seal = Seal(record, NodeId(0), Revision(1), ReplicationConfig(), NOW, lambda: 1)
        answers: list[model.Report | None] = [None] * len(record.replicas)
        for node in record.replicas:
            if rng.random() < 0.7:
                incarnation = rng.randint(1, 3)
                report = model.Report(rng.randint(0, 5), incarnation, rng.randint(1, incarnation))
                answers[node] = report
                seal.answers[node] = FenceAnswer(
                    segment=record.segment,
                    fence=Fence(1),
                    node=node,
                    incarnation=Incarnation(incarnation),
                    continuous_since=Incarnation(report.continuous_since),
                    at=Point(Offset(report.end), Crc(0)),
                )
        world = as_world(model_, record, as_leader(record, Marks(record, Offset(0)), None))
        controller = model.Controller(fence=1, answers=tuple(answers))
        expected = model_._decided(world._replace(controller=controller))
        assert seal.is_answered() == (expected is not None)
        if expected is not None:
            decided += 1
            assert seal.greatest_end() == expected
    assert decided > CASES // 10


def projections(world: World) -> Iterator[tuple[model.Model, model.World]]:
    """Each segment of a simulated world as a world of the model."""
    for segment, record in world.store.records.items():
        truth = world.judge.truths.get(segment)
        if truth is None or record.lossy or len(record.replicas) == 1:
            continue
        nodes = [record.leader, *(node for node in record.replicas if node != record.leader)]
        size = model.Size(replicas=len(nodes), min_in_sync=1)
        model_ = model.Model(size)
        index = {node: at for at, node in enumerate(nodes)}
        replicas = []
        for node in nodes:
            disk = world.hosts[node].disk
            log = disk.logs.get(segment)
            replicas.append(
                model.Replica(
                    log=tuple(batch.number for batch in log.batches) if log else (),
                    durable=log.durable_count if log else 0,
                    incarnation=disk.incarnation or -1,
                )
            )
        ends = sorted(truth.ends)
        content = tuple(truth.batches[end].number for end in ends)
        promised = content[: sum(end <= truth.promised for end in ends)]
        sealed = None
        if record.state is RecordState.SEALED:
            sealed = content[: sum(end <= record.sealed_at.end for end in ends)]
        mark = world.hosts[record.leader].marks.get(segment, record.start)
        high = sum(end <= mark for end in ends)
        isr = frozenset((index[each.node], int(each.incarnation)) for each in record.isr)
        started = model_.start()
        yield (
            model_,
            started._replace(
                replicas=tuple(replicas),
                record=started.record._replace(isr=isr, content=sealed),
                leader=started.leader._replace(high_watermark=high),
                promised=promised,
            ),
        )


@pytest.mark.parametrize("seed", range(300, 320))
def test_the_models_invariants_hold_in_simulated_worlds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def check(world: World) -> None:
        nonlocal seen
        checked(world)
        if world.step_count % 10 == 0:
            for model_, projected in projections(world):
                problem = model_.violation(projected)
                assert problem is None, problem
                seen += 1

    checked = World._check
    monkeypatch.setattr(World, "_check", check)
    simulation = Simulation(seed)
    simulation.run()
    assert seen > 100 or simulation.world.size.replicas == 1
