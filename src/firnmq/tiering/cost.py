"""The monthly cost of a topic's history: on local disks alone, and tiered to an object store.

All values are inputs, including the prices. The default prices are a large provider's list prices
in its cheapest region (US dollars, GB of 10^9 bytes): replicated SSD volumes 0.08 per GB-month,
object storage 0.023 per GB-month, 0.005 per 1,000 write and 0.0004 per 1,000 read requests, no
charge for traffic within the region.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from firnmq.errors import InvalidArgument

GB = 1_000_000_000
DAYS_PER_MONTH = 365 / 12

_PART_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 4 * 1024 * 1024
_WRITES_PER_SEGMENT = 4
"""Start and completion of the upload, the index, the manifest; the parts are added to it."""
_LOOKS_PER_SEGMENT = 8
"""HEAD requests after the upload and before the local copy is dropped, and the index's head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Write rate, retention, and the share of the history that is read again."""

    bytes_per_day: float
    retention_days: float
    local_days: float = 7
    """How long segments stay on local disks once they are in the store."""
    replicas: int = 3
    """Local copies. The object store's own replication is included in its price."""
    segment_bytes: int = 1024 * 1024 * 1024
    cold_read_share: float = 0.1
    """Part of the whole history that is read from the object store in a month."""

    def __post_init__(self) -> None:
        for name in ("bytes_per_day", "retention_days", "segment_bytes", "replicas"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(name, f"must be above 0, not {getattr(self, name)}")
        for name in ("local_days", "cold_read_share"):
            if not getattr(self, name) >= 0:
                raise InvalidArgument(name, f"must not be below 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All in one currency."""

    local_gb_month: float = 0.08
    local_fill: float = 0.7
    """Share of the local disks that may be filled: the price covers the unused rest too."""
    store_gb_month: float = 0.023
    write_1000: float = 0.005
    read_1000: float = 0.0004
    read_gb: float = 0.0
    """Traffic out of the store; free within a provider's region."""

    def __post_init__(self) -> None:
        for name in ("local_gb_month", "store_gb_month", "write_1000", "read_1000", "read_gb"):
            if not getattr(self, name) >= 0:
                raise InvalidArgument(name, f"must not be below 0, not {getattr(self, name)}")
        if not 0 < self.local_fill <= 1:
            raise InvalidArgument("local_fill", f"must be in (0, 1], not {self.local_fill}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyCost:
    """Bytes held and the price of a month, once the history has reached its full length."""

    history_bytes: float
    local_only_bytes: float
    local_only: float
    tiered_local_bytes: float
    tiered_local: float
    store_bytes: float
    store_capacity: float
    write_requests: float
    write: float
    read_requests: float
    read: float

    @property
    def tiered(self) -> float:
        return self.tiered_local + self.store_capacity + self.write + self.read

    @property
    def saved_share(self) -> float:
        """Negative if tiering costs more than it saves."""
        return 1 - self.tiered / self.local_only if self.local_only else 0.0


def monthly_cost(workload: Workload, prices: Prices) -> MonthlyCost:
    history = workload.bytes_per_day * workload.retention_days
    local_days = min(workload.local_days, workload.retention_days)
    local_only_bytes = history * workload.replicas
    tiered_local_bytes = workload.bytes_per_day * local_days * workload.replicas
    segments = workload.bytes_per_day * DAYS_PER_MONTH / workload.segment_bytes
    parts = math.ceil(workload.segment_bytes / _PART_BYTES)
    writes = segments * (parts + _WRITES_PER_SEGMENT)
    read_bytes = history * workload.cold_read_share
    reads = read_bytes / _CHUNK_BYTES + segments * _LOOKS_PER_SEGMENT
    local_price = prices.local_gb_month / prices.local_fill / GB
    return MonthlyCost(
        history_bytes=history,
        local_only_bytes=local_only_bytes,
        local_only=local_only_bytes * local_price,
        tiered_local_bytes=tiered_local_bytes,
        tiered_local=tiered_local_bytes * local_price,
        store_bytes=history,
        store_capacity=history * prices.store_gb_month / GB,
        write_requests=writes,
        write=writes * prices.write_1000 / 1000,
        read_requests=reads,
        read=reads * prices.read_1000 / 1000 + read_bytes * prices.read_gb / GB,
    )
