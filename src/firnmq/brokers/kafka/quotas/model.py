"""Quotas: whom they are about, and which there are."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from firnmq.errors import InvalidArgument

USER, CLIENT_ID, IP = "user", "client-id", "ip"
DEFAULT: Final = None
"""In place of a name: all that have no quota of their own."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types and names, in the order of the types: whom quotas are about. Users and client ids go
together; an address is alone."""

ENTITIES_MAX: Final = 10_000
"""Entities with quotas of a node or cluster; each change looks at all of them."""
NAME_CHARS_MAX: Final = 1_024


class Quota(enum.Enum):
    """The values are Kafka's names."""

    PRODUCE_BYTES = "producer_byte_rate"
    FETCH_BYTES = "consumer_byte_rate"
    REQUEST_TIME = "request_percentage"
    """Percent of the time of the event loop that answers clients."""
    MUTATIONS = "controller_mutation_rate"
    """Partitions that are made and removed per second."""
    CONNECTIONS = "connection_creation_rate"
    """New connections per second, of an address."""


Limits: TypeAlias = Mapping[Quota, float]
_OF_CLIENTS: Final = frozenset(Quota) - {Quota.CONNECTIONS}


def checked_entity(parts: Mapping[str, str | None]) -> Entity:
    """The entity of these types and names; InvalidArgument if there can be none."""
    unknown = parts.keys() - {USER, CLIENT_ID, IP}
    if unknown or not parts:
        raise InvalidArgument("entity", f"must be of {USER}, {CLIENT_ID} or {IP}")
    if IP in parts and len(parts) > 1:
        raise InvalidArgument("entity", f"{IP} goes with no other type")
    for name in parts.values():
        if name is not None and not 0 < len(name) <= NAME_CHARS_MAX:
            raise InvalidArgument("entity", f"a name must have 1 to {NAME_CHARS_MAX} characters")
    return tuple(sorted(parts.items()))


def checked_limit(entity: Entity, key: str, value: float) -> tuple[Quota, float]:
    """A quota by its name, and its value; InvalidArgument if the entity cannot have it."""
    try:
        quota = Quota(key)
    except ValueError:
        raise InvalidArgument(key, "is no quota") from None
    is_address = entity[0][0] == IP
    if (quota in _OF_CLIENTS) is is_address:
        raise InvalidArgument(key, "is no quota of this type of entity")
    if not math.isfinite(value) or value <= 0:
        raise InvalidArgument(key, f"must be above 0, not {value}")
    return quota, value


def candidates(user: str, client_id: str) -> tuple[Entity, ...]:
    """The entities that a client is of, the one that counts most first."""
    users: tuple[str | None, ...] = (user, DEFAULT)
    clients: tuple[str | None, ...] = (client_id, DEFAULT)
    found: list[Entity] = []
    for name in users:
        found += [((CLIENT_ID, each), (USER, name)) for each in clients]
        found.append(((USER, name),))
    found += [((CLIENT_ID, each),) for each in clients]
    return tuple(found)
