"""What state machines have in common: one table with all of their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from firnmq.errors import FirnError

StateT = TypeVar("StateT", bound=Enum)
StepT = TypeVar("StepT", bound=Enum)


class IllegalTransition(FirnError):
    """The machine cannot take this step from where it is; nothing was changed."""

    def __init__(self, machine: str, state: Enum, step: Enum) -> None:
        super().__init__(f"{machine}: {step.value} is impossible while {state.value}")
        self.machine = machine
        self.state = state
        self.step = step


class Transitions(Generic[StateT, StepT]):
    """All transitions of one machine. A pair that is not in the table is a defect."""

    def __init__(self, machine: str, table: Mapping[tuple[StateT, StepT], StateT]) -> None:
        self.machine = machine
        self.table = dict(table)

    def next(self, state: StateT, step: StepT) -> StateT:
        try:
            return self.table[state, step]
        except KeyError:
            raise IllegalTransition(self.machine, state, step) from None

    def allows(self, state: StateT, step: StepT) -> bool:
        return (state, step) in self.table
