"""What a month of history costs, on local disks alone and in an object store."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import msgspec

from firnmq.adapter import Topic
from firnmq.disk import call_blocking
from firnmq.errors import InvalidArgument
from firnmq.meta.records import SEGMENTS, SegmentRecord, decode, shard_of_segment
from firnmq.server.admin.console.figures import Figures
from firnmq.server.admin.endpoint import Call, Parameter
from firnmq.server.admin.parts import NodeParts
from firnmq.tiering.cost import MonthlyCost, Prices, Workload, monthly_cost

_DAY_MS: Final = 24 * 3600 * 1000
_AGE_MS_MIN: Final = 60 * 1000
"""A rate from less time says nothing at all; the estimate says how long it was measured."""
_DEFAULTS: Final = {"bytes_per_day": 1e12, "retention_days": 365.0, "local_days": 7.0}
_WORKLOAD: Final = {
    "bytes_per_day": "Bytes written a day; otherwise as measured.",
    "retention_days": "How long they are kept.",
    "local_days": "How long they stay on local disks.",
    "replicas": "Local copies.",
    "segment_bytes": "Size of a segment.",
    "cold_read_share": "Part of the history that is read from the store in a month.",
}
_PRICES: Final = {
    "local_gb_month": "Price of a GB-month of local disk.",
    "local_fill": "Part of local disks that may be filled.",
    "store_gb_month": "Price of a GB-month in the store.",
    "write_1000": "Price of 1,000 requests that write.",
    "read_1000": "Price of 1,000 requests that read.",
    "read_gb": "Price of a GB that is read out of the store.",
}
PARAMETERS: Final = {
    "topic": Parameter(text="Of this topic alone; otherwise of all.", kind="string"),
    **{name: Parameter(text=text, kind="number") for name, text in (_WORKLOAD | _PRICES).items()},
}


class CostInput(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float
    source: str
    """given, measured, option (of the topic) or assumed."""
    text: str


class CostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a month once the history has its full length. Prices are in one currency."""

    topic: str | None
    held_bytes: int
    """What there is now."""
    measured_ms: int
    """How long ago the oldest segment was begun: what is held was written since."""
    inputs: list[CostInput]
    month: MonthlyCost
    tiered: float
    saved_share: float
    """Negative if the store costs more than it saves."""


class CostView:
    def __init__(self, parts: NodeParts, figures: Figures) -> None:
        self._parts = parts
        self._figures = figures

    async def estimate(self, call: Call) -> CostEstimate:
        name = call.query.get("topic")
        catalog = self._parts.storage.catalog
        topics = catalog.topics() if name is None else [self._parts.storage.topic(name)]
        figures = await self._figures.topics.get()
        held = sum(figures[t.topic_id].length_bytes for t in topics if t.topic_id in figures)
        given = {each: _number(call.query, each) for each in _WORKLOAD | _PRICES}
        age_ms = await self._age_ms(topics)
        known = _told_by(topics, held, age_ms, name)
        workload = {each: given[each] for each in _WORKLOAD if given[each] is not None}
        for each, default in _DEFAULTS.items():
            workload.setdefault(each, known.get(each, default))
        for each in ("replicas", "segment_bytes"):
            if each in workload:
                workload[each] = int(workload[each] or 0)
        prices = {each: given[each] for each in _PRICES if given[each] is not None}
        found_workload, found_prices = Workload(**_known(workload)), Prices(**_known(prices))
        month = monthly_cost(found_workload, found_prices)
        inputs = [
            CostInput(name=each, value=value, source=_source(each, given, known), text=texts[each])
            for part, texts in ((found_workload, _WORKLOAD), (found_prices, _PRICES))
            for each, value in ((f.name, getattr(part, f.name)) for f in fields(part))
        ]
        return CostEstimate(
            topic=name,
            held_bytes=held,
            measured_ms=age_ms,
            inputs=inputs,
            month=month,
            tiered=month.tiered,
            saved_share=month.saved_share,
        )

    async def _age_ms(self, topics: list[Topic]) -> int:
        """How long ago the oldest segment was begun."""
        ids = {topic.topic_id for topic in topics}
        cache, now_ms = self._parts.local.cache, self._parts.local.clock.now_ms()

        def oldest() -> int:
            created: int = now_ms
            for entry in cache.below(SEGMENTS):
                if shard_of_segment(entry.key).rpartition("_")[0] in ids:
                    created = min(created, decode(entry, SegmentRecord).created_ms)
            return created

        return now_ms - await call_blocking(None, oldest)


def _told_by(topics: list[Topic], held: int, age_ms: int, name: str | None) -> dict[str, float]:
    """What the topics themselves tell: the rate by their segments, and one topic's options."""
    found = {}
    if held and age_ms >= _AGE_MS_MIN:
        found["bytes_per_day"] = held * _DAY_MS / age_ms
    if name is not None:
        config = topics[0].config
        for limit, each in (
            (config.retention_ms, "retention_days"),
            (config.local_retention_ms, "local_days"),
        ):
            if limit is not None and limit > 0:
                found[each] = limit / _DAY_MS
    return found


def _number(query: dict[str, str], name: str) -> float | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        raise InvalidArgument(name, f"must be a number, not {text!r}") from None
    if not 0 <= number <= 1e18:
        raise InvalidArgument(name, f"must be 0 to 1e18, not {text}")
    return number


def _known(values: dict[str, float | None]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _source(name: str, given: dict[str, float | None], known: dict[str, float]) -> str:
    if given[name] is not None:
        return "given"
    if name in known:
        return "measured" if name == "bytes_per_day" else "option"
    return "assumed"
