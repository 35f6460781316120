"""Worlds that differ in nothing that matters are one world, which keeps the search small.

Three differences do not matter: messages that can have no effect any more, what a leader or
controller knows that has ended, and which of two followers is called 1 and which 2.
"""

from __future__ import annotations

from typing import TypeVar

from tests.simulation.replication.model import (
    LEADER,
    Controller,
    Leader,
    Member,
    Members,
    Message,
    Report,
    Rules,
    World,
)

NO_REPORT = Report(-1, -1, -1)


class Reduction:
    def __init__(self, rules: Rules, replicas: int) -> None:
        self._rules = rules
        self._nothing: tuple[Report | None, ...] = (None,) * replicas
        self._followers = range(1, replicas)

    def reduced(self, world: World) -> World:
        record, leader, controller = world.record, world.leader, world.controller
        if not leader.is_leading:
            leader = Leader(False, frozenset(), 0, None, self._nothing, leader.high_watermark)
        if record.is_sealed and self._rules.seal_compares_fence:
            is_fencing_still = leader.is_leading  # A fence may still reach it.
            fence = record.fence if is_fencing_still else 0
            controller = Controller(fence=fence, answers=self._nothing)
        elif controller.content is not None:
            controller = controller._replace(answers=self._nothing)
        world = world._replace(leader=leader, controller=controller)
        kept = frozenset(each for each in world.messages if self._matters(world, each))
        return self._sorted(world._replace(messages=kept))

    def _matters(self, world: World, message: Message) -> bool:
        kind, segment = message[:2]
        if not self._rules.messages_name_segment:
            return True
        if segment != world.segment:
            return False
        match message[2:]:
            case (node, incarnation, _) if kind == "fetch":
                known = world.leader.reports[node]
                is_older = known is not None and known.incarnation > incarnation
                return world.leader.is_leading and not is_older
            case (node, incarnation, at, _) if kind == "data":
                replica = world.replicas[node]
                if replica.fence and self._rules.fenced_replicas_stop:
                    return False
                return replica.incarnation == incarnation and len(replica.log) <= at
            case (_, fence, _) if kind == "answer":
                is_awaited = world.controller.content is None and not world.record.is_sealed
                return is_awaited and fence == world.controller.fence
            case _ if kind == "isr":
                return world.record.fence == 0 and world.leader.is_leading
            case (fence, _) if kind == "seal":
                is_current = fence == world.record.fence and not world.record.is_sealed
                return is_current or not self._rules.seal_compares_fence
            case (epoch, _, _) if kind == "plan":
                is_current = epoch == world.record.epoch and not world.record.is_sealed
                return is_current or not self._rules.planned_seal_compares_epoch
        raise AssertionError(message)

    # Followers are alike

    def _sorted(self, world: World) -> World:
        order = sorted(self._followers, key=lambda node: self._looks(world, node))
        if order == list(self._followers):
            return world
        return _renamed(world, {LEADER: LEADER, **{old: new for new, old in enumerate(order, 1)}})

    def _looks(self, world: World, node: int) -> tuple[object, ...]:
        """All that the world holds about one follower."""
        record, leader, controller = world.record, world.leader, world.controller
        return (
            world.replicas[node],
            leader.reports[node] or NO_REPORT,
            _listed(leader.isr, node),
            _listed(leader.proposed or frozenset(), node),
            _listed(record.isr, node),
            record.opened[node],
            controller.answers[node] or NO_REPORT,
            node in controller.confirmed,
            sorted(
                (message[0], message[1], *message[3:])
                for message in world.messages
                if message[0] in ("fetch", "data", "answer") and message[2] == node
            ),
            sorted(
                (message[0], message[1], message[2], _listed(message[-1], node))
                for message in world.messages
                if message[0] in ("isr", "plan")
            ),
        )


Names = dict[int, int]
Item = TypeVar("Item")


def _renamed(world: World, names: Names) -> World:
    record, leader, controller = world.record, world.leader, world.controller
    proposed = leader.proposed
    return world._replace(
        replicas=_moved(world.replicas, names),
        leader=leader._replace(
            isr=_members(leader.isr, names),
            proposed=None if proposed is None else _members(proposed, names),
            reports=_moved(leader.reports, names),
        ),
        record=record._replace(
            isr=_members(record.isr, names), opened=_moved(record.opened, names)
        ),
        controller=controller._replace(
            answers=_moved(controller.answers, names),
            confirmed=frozenset(names[node] for node in controller.confirmed),
        ),
        messages=frozenset(_message(each, names) for each in world.messages),
    )


def _moved(items: tuple[Item, ...], names: Names) -> tuple[Item, ...]:
    moved = list(items)
    for old, new in names.items():
        moved[new] = items[old]
    return tuple(moved)


def _members(members: Members, names: Names) -> Members:
    return frozenset((names[node], incarnation) for node, incarnation in members)


def _message(message: Message, names: Names) -> Message:
    match message:
        case ("fetch" | "data" | "answer" as kind, segment, node, *rest):
            return (kind, segment, names[node], *rest)
        case ("isr" as kind, segment, epoch, members):
            return (kind, segment, epoch, _members(members, names))
        case ("plan" as kind, segment, epoch, content, members):
            return (kind, segment, epoch, content, _members(members, names))
    return message


def _listed(members: frozenset[Member], node: int) -> int:
    """The incarnation with which the node is listed, 0 if it is not."""
    return max((incarnation for each, incarnation in members if each == node), default=0)
