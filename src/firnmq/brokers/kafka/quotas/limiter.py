"""What clients have used up, and how long those beyond their quota have to wait.

A quota is a bucket that fills with its rate and holds what comes in two seconds. What a client does
is taken out afterwards, so that a bucket may owe; the client waits until it is level again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from firnmq.brokers.kafka.quotas.model import (
    CLIENT_ID,
    DEFAULT,
    IP,
    USER,
    Entity,
    Limits,
    Quota,
    candidates,
)

BURST_S: Final = 2.0
"""Seconds' worth of what a client may do at once after a pause."""
WAIT_S_MAX: Final = 30.0
"""The longest wait at a time. A client that owes more waits again after its next request."""
_BUCKETS_MAX: Final = 20_000
_KNOWN_MAX: Final = 10_000


class Bucket:
    __slots__ = ("_level", "_rate", "_time_s")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._level = rate * BURST_S
        self._time_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Takes out what was used; returns the seconds to wait."""
        filled = self._level + (now_s - self._time_s) * self._rate
        self._level = min(filled, self._rate * BURST_S) - amount
        self._time_s = now_s
        return min(max(-self._level / self._rate, 0.0), WAIT_S_MAX)


BucketKey = tuple[Quota, float, str, str]
"""A quota and its rate, and the user and client id that it is counted for."""


class ClientQuotas:
    """The quotas of one user with one client id."""

    __slots__ = ("_keys", "_limiter")

    def __init__(self, limiter: QuotaLimiter, keys: Mapping[Quota, BucketKey]) -> None:
        self._limiter = limiter
        self._keys = keys

    def has(self, quota: Quota) -> bool:
        return quota in self._keys

    def take(self, quota: Quota, amount: float) -> float:
        """Counts what the client has done; the seconds it has to wait."""
        key = self._keys.get(quota)
        return 0.0 if key is None else self._limiter.take(key, amount)


class QuotaLimiter:
    """Owned by the event loop."""

    def __init__(self, limits: Callable[[], Mapping[Entity, Limits]], now_s: Callable[[], float]):
        """`limits` gives the quotas as of now, the same object until they change."""
        self._limits = limits
        self._now_s = now_s
        self._seen: Mapping[Entity, Limits] = {}
        self._known: dict[tuple[str, str], ClientQuotas | None] = {}
        self._buckets: OrderedDict[BucketKey, Bucket] = OrderedDict()

    def of(self, user: str, client_id: str) -> ClientQuotas | None:
        """None for a client without quotas."""
        limits = self._current()
        if not limits:
            return None
        who = (user, client_id)
        if who not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[who] = self._find(limits, user, client_id)
        return self._known[who]

    def connection_wait_s(self, address: str) -> float:
        """Counts a new connection; seconds that an address beyond its quota would have to wait."""
        limits = self._current()
        for name in (address, DEFAULT):
            rate = limits.get(((IP, name),), {}).get(Quota.CONNECTIONS)
            if rate is not None:
                return self.take((Quota.CONNECTIONS, rate, address, ""), 1.0)
        return 0.0

    def take(self, key: BucketKey, amount: float) -> float:
        now_s = self._now_s()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = Bucket(key[1], now_s)
        self._buckets.move_to_end(key)
        return bucket.take(amount, now_s)

    def _current(self) -> Mapping[Entity, Limits]:
        limits = self._limits()
        if limits is not self._seen:
            self._seen = limits
            self._known.clear()
        return limits

    def _find(
        self, limits: Mapping[Entity, Limits], user: str, client_id: str
    ) -> ClientQuotas | None:
        found: dict[Quota, BucketKey] = {}
        for entity in candidates(user, client_id):
            types = {kind for kind, _ in entity}
            for quota, rate in limits.get(entity, {}).items():
                if quota not in found:
                    counted_user = user if USER in types else ""
                    counted_id = client_id if CLIENT_ID in types else ""
                    found[quota] = (quota, rate, counted_user, counted_id)
        return ClientQuotas(self, found) if found else None
