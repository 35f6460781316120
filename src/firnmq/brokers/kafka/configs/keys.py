"""What clients are told of a config besides its value: type, limits, explanation."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from firnmq.errors import InvalidArgument

LONG_MAX: Final = 2**63 - 1
_INT_MAX: Final = 2**31 - 1
_THROTTLED = re.compile(r"\*|(\d{1,10}:\d{1,10}(,\d{1,10}:\d{1,10})*)?")


class ConfigType(enum.IntEnum):
    """The types of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(enum.IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A config by the name that Kafka gives it, or that we give one of ours."""

    name: str
    type: ConfigType
    documentation: str
    default: str = ""
    """Of a config without effect; the others have the default of the option they stand for."""
    low: float | None = None
    high: float | None = None
    also: tuple[str, ...] = ()
    """Values outside the limits that are good all the same."""
    broker_name: str | None = None
    """The broker's config that gives new topics this one."""

    def check(self, value: str) -> None:
        """InvalidArgument for a value that Kafka does not take either."""
        text = value.strip()
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise InvalidArgument(self.name, f"must be true or false, not {value!r}")
        elif self.type in (ConfigType.INT, ConfigType.LONG):
            self._check_number(text)
        elif self.type is ConfigType.LIST and not _THROTTLED.fullmatch(text):
            reason = f"must be * or pairs of partition:node separated by commas, not {value!r}"
            raise InvalidArgument(self.name, reason)

    def _check_number(self, text: str) -> None:
        if text in self.also:
            return
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise InvalidArgument(self.name, f"must be a whole number, not {text!r}")
        most = _INT_MAX if self.type is ConfigType.INT else LONG_MAX
        low = -most - 1 if self.low is None else int(self.low)
        high = most if self.high is None else int(self.high)
        if not low <= int(text) <= high:
            reason = f"is {int(text):,}, allowed are {low:,} to {high:,}"
            raise InvalidArgument(self.name, reason)
