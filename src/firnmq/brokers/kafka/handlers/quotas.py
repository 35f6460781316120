"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.clients import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    AlteredQuotaResult,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaComponent,
    QuotaEntity,
    QuotaEntry,
    QuotaValue,
)
from firnmq.brokers.kafka.quotas.model import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    Quota,
    checked_entity,
    checked_limit,
)
from firnmq.brokers.kafka.quotas.store import QuotaStore, sorted_limits
from firnmq.brokers.net.loop_turns import Turns
from firnmq.errors import FirnError, InvalidArgument

_EXACT, _DEFAULT, _ANY = 0, 1, 2
"""How a component of a filter matches a name."""


class QuotaHandler:
    def __init__(self, store: QuotaStore, turns: Turns) -> None:
        self._store = store
        self._turns = turns

    async def describe(self, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        problem = _problem(request.components)
        if problem:
            return DescribeClientQuotasResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message=problem, entries=None
            )
        found = []
        async for entity, limits in self._turns.over(self._store.limits.items()):
            if _matches(dict(entity), request.components, strict=request.strict):
                found.append(
                    QuotaEntry(
                        entity=_shown(entity),
                        values=[
                            QuotaValue(key=quota.value, value=value)
                            for quota, value in sorted_limits(limits)
                        ],
                    )
                )
        return DescribeClientQuotasResponse(entries=found)

    async def alter(self, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        return AlterClientQuotasResponse(
            entries=[
                await self._alter(entry, validate_only=request.validate_only)
                async for entry in self._turns.over(request.entries)
            ]
        )

    async def _alter(self, entry: AlteredQuota, *, validate_only: bool) -> AlteredQuotaResult:
        try:
            parts = {each.entity_type: each.entity_name for each in entry.entity}
            if len(parts) < len(entry.entity):
                raise InvalidArgument("entity", "names a type twice")
            entity = checked_entity(parts)
            change: dict[Quota, float | None] = {}
            for op in entry.ops:
                quota, _ = checked_limit(entity, op.key, 1.0 if op.remove else op.value)
                change[quota] = None if op.remove else op.value
            await asyncio.get_running_loop().run_in_executor(
                None, lambda: self._store.change(entity, change, validate_only=validate_only)
            )
        except FirnError as error:
            return AlteredQuotaResult(
                error_code=code_of(error), error_message=str(error), entity=entry.entity
            )
        return AlteredQuotaResult(entity=entry.entity)


def _shown(entity: Entity) -> list[QuotaEntity]:
    return [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]


def _problem(components: Sequence[QuotaComponent]) -> str:
    types = [each.entity_type for each in components]
    if len(set(types)) < len(types):
        return "a type of entity is given twice"
    if not set(types) <= {USER, CLIENT_ID, IP}:
        return "a type of entity is unknown"
    if IP in types and len(types) > 1:
        return "ip goes with no other type"
    for each in components:
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            return f"match type {each.match_type} is unknown"
        if (each.match_type == _EXACT) is (each.match is None):
            return "a name is given with an exact match and with no other"
    return ""


def _matches(
    parts: dict[str, str | None], components: Sequence[QuotaComponent], *, strict: bool
) -> bool:
    if strict and len(parts) != len(components):
        return False
    for each in components:
        if each.entity_type not in parts:
            return False
        name = parts[each.entity_type]
        if each.match_type == _EXACT and name != each.match:
            return False
        if each.match_type == _DEFAULT and name is not None:
            return False
    return True
