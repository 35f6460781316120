"""Rolling a log: a state machine, what performs its actions, and the appends that wait for it."""

from firnmq.engines.shardlog.rolling.machine import RollMachine
from firnmq.engines.shardlog.rolling.parked import ParkedAppends, ParkingBudget
from firnmq.engines.shardlog.rolling.state import RollState

__all__ = ["ParkedAppends", "ParkingBudget", "RollMachine", "RollState"]
