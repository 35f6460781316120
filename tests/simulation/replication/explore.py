"""Visits every state of a model, nearest first, until one of them is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.replication.model import Model, World
from tests.simulation.replication.reduction import Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    states: int
    problem: str | None = None
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        numbered = (f"{number:3} {step}" for number, step in enumerate(self.steps, 1))
        return "\n".join([f"{self.states} states, {self.problem or 'nothing wrong'}", *numbered])


class TooManyStates(Exception):
    """The model is larger than its test allows; nothing is known of it."""


def explore(model: Model, *, most: int = 5_000_000) -> Explored:
    start = model.start()
    reduced = Reduction(model.rules, model.size.replicas).reduced
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    layer = [start]
    while layer:
        following: list[World] = []
        for world in layer:
            for name, after in model.steps(world):
                after = reduced(after)
                if after in came_from:
                    continue
                came_from[after] = (world, name)
                problem = model.violation(after)
                if problem is not None:
                    return Explored(
                        states=len(came_from), problem=problem, steps=_path(came_from, after)
                    )
                following.append(after)
        if len(came_from) > most:
            raise TooManyStates(f"{len(came_from)} states and more")
        layer = following
    return Explored(states=len(came_from))


def _path(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps = []
    at = came_from[world]
    while at is not None:
        steps.append(at[1])
        at = came_from[at[0]]
    return tuple(reversed(steps))
