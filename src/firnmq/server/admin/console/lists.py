"""The console's lists: topics, groups, segments, users."""

from __future__ import annotations

import msgspec

from firnmq.adapter import Topic
from firnmq.brokers.security.acl import RuleFilter
from firnmq.disk import call_blocking
from firnmq.errors import FirnError, InvalidArgument
from firnmq.server.admin.console.documents import (
    GroupPage,
    GroupRow,
    GroupShard,
    GroupShardPage,
    RulePage,
    SegmentPage,
    TopicPage,
    TopicRow,
    UserPage,
)
from firnmq.server.admin.console.figures import (
    Figures,
    GroupFigures,
    TopicFigures,
    why_behind,
    why_lagging,
)
from firnmq.server.admin.console.listing import Wish
from firnmq.server.admin.console.places import PLACES, place_of
from firnmq.server.admin.endpoint import Call
from firnmq.server.admin.endpoints.groups import GroupAdmin
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import AccessRule, Segment, ShardSummary, TopicSummary, segments_of
from firnmq.server.rules import shown_rule

TOPIC_SORTS = ("topic", "length_bytes", "record_count", "record_rate", "lag", "created_ms")
GROUP_SORTS = ("group", "lag", "member_count", "committed_ms", "state")
SEGMENT_SORTS = ("shard", "length_bytes", "created_ms")
GROUP_SHARD_SORTS = ("lag", "topic", "committed_ms")
USER_SORTS = ("user",)
RULE_SORTS = ("principal", "resource_type", "name")
_EXACT_SHARDS_MAX = 500
"""Shards of a page that are asked how long they are, which may open them. Those of further topics
are shown as they were gathered."""
_NOTHING = TopicFigures(0, 0, 0)


class Lists:
    def __init__(self, parts: NodeParts, figures: Figures, groups: GroupAdmin) -> None:
        self._parts = parts
        self._groups = groups
        self._figures = figures

    # Topics -------------------------------------------------------------------------------------

    async def topics(self, call: Call) -> TopicPage:
        wish = Wish.of(call, TOPIC_SORTS, descending=TOPIC_SORTS[1:])
        figures = await self._figures.topics.get()
        lags = await self._lags()

        def key(topic: Topic) -> tuple[float | str, str]:
            found = figures.get(topic.topic_id, _NOTHING)
            value: float | str = topic.name
            match wish.sort:
                case "length_bytes":
                    value = found.length_bytes
                case "record_count":
                    value = found.record_count
                case "record_rate":
                    value = found.record_rate or 0
                case "lag":
                    value = lags.get(topic.name, (0, ""))[0]
                case "created_ms":
                    value = topic.created_ms
            return value, topic.name

        def choose() -> tuple[int, list[Topic]]:
            topics = wish.chosen(self._parts.storage.catalog.topics(), lambda each: each.name)
            return len(topics), wish.page(topics, key)

        # In a thread: with very many topics it takes longer than the event loop may be kept.
        total, chosen = await call_blocking(None, choose)
        left = _EXACT_SHARDS_MAX
        rows = []
        for topic in chosen:
            left -= topic.shard_count
            found = figures.get(topic.topic_id)
            row = await self._row(topic, found, is_exact=left >= 0 or found is None)
            lag, group = lags.get(topic.name, (None, None))
            rows.append(msgspec.structs.replace(row, lag=lag, lag_group=group))
        return TopicPage(total=total, rows=rows)

    async def _row(self, topic: Topic, figures: TopicFigures | None, *, is_exact: bool) -> TopicRow:
        summary = msgspec.structs.asdict(TopicSummary.of(topic))
        rate = None if figures is None else figures.record_rate
        if not is_exact and figures is not None:
            return TopicRow(
                **summary,
                record_count=figures.record_count,
                length_bytes=figures.length_bytes,
                store_only_bytes=figures.store_only_bytes,
                record_rate=rate,
            )
        shards = await self._shards(topic)
        failure = next((each.failure for each in shards if each.failure), None)
        return TopicRow(
            **summary,
            record_count=sum((each.end_offset or 0) - (each.start_offset or 0) for each in shards),
            length_bytes=_sum([each.length_bytes for each in shards]),
            store_only_bytes=_sum([each.store_only_bytes for each in shards]),
            record_rate=rate,
            failure=failure,
        )

    async def _shards(self, topic: Topic) -> list[ShardSummary]:
        manager = self._parts.local.manager
        found = []
        for seq, shard in enumerate(topic.shard_names()):
            try:
                logs = manager.driver_of(topic.name).logs
                if logs is not None:
                    found.append(ShardSummary.of(seq, await logs.status(shard)))
                else:
                    start, end = await manager.bounds(topic, seq)
                    found.append(ShardSummary(shard=seq, start_offset=start, end_offset=end))
            except FirnError as error:
                found.append(ShardSummary(shard=seq, failure=str(error)))
        return found

    async def _lags(self) -> dict[str, tuple[int, str]]:
        """By topic, the greatest lag and the group that has it."""
        found: dict[str, tuple[int, str]] = {}
        for each in await self._figures.groups():
            for topic, lag in each.lags.items():
                if lag > found.get(topic, (0, ""))[0]:
                    found[topic] = (lag, each.group)
        return found

    # Groups -------------------------------------------------------------------------------------

    async def groups(self, call: Call) -> GroupPage:
        wish = Wish.of(call, GROUP_SORTS, descending=("lag", "member_count", "committed_ms"))
        every = await self._figures.groups()
        groups = wish.chosen(every, lambda each: each.group)

        def key(each: GroupFigures) -> tuple[object, str]:
            value = getattr(each, wish.sort)
            return value or 0 if wish.sort == "committed_ms" else value, each.group

        now_ms = self._parts.local.clock.now_ms()
        return GroupPage(
            total=len(groups),
            lagging=sum(1 for each in every if each.lag),
            rows=[
                GroupRow(
                    group=each.group,
                    state=each.state,
                    protocol_type=each.protocol_type,
                    member_count=each.member_count,
                    lag=each.lag,
                    shard_count=each.shard_count,
                    topics=each.topics,
                    committed_ms=each.committed_ms,
                    lag_rate=each.lag_rate,
                    why=why_lagging(each, now_ms),
                )
                for each in wish.page(groups, key)
            ],
        )

    async def group_shards(self, call: Call) -> GroupShardPage:
        wish = Wish.of(call, GROUP_SHARD_SORTS, descending=("lag", "committed_ms"))
        name = call.query.get("group", "")
        found = await self._groups.describe(name)
        now_ms = self._parts.local.clock.now_ms()
        clients = {each.member_id: f"{each.client_id} {each.client_host}" for each in found.members}
        rows = [
            GroupShard(
                **msgspec.structs.asdict(each),
                client=None if each.member_id is None else clients.get(each.member_id),
                why=why_behind(each, found.member_count, now_ms),
            )
            for each in wish.chosen(found.offsets, lambda each: each.topic)
        ]
        lag = sum(each.lag or 0 for each in found.offsets)

        def key(each: GroupShard) -> tuple[object, str, int]:
            value = each.topic if wish.sort == "topic" else getattr(each, wish.sort) or 0
            return value, each.topic, each.shard

        return GroupShardPage(
            total=len(rows),
            lag=lag,
            topics=sorted({each.topic for each in found.offsets}),
            rows=wish.page(rows, key),
        )

    # Segments and users -------------------------------------------------------------------------

    async def segments(self, call: Call) -> SegmentPage:
        """A topic's segments, of one shard or all, in one place or all."""
        wish = Wish.of(call, SEGMENT_SORTS, descending=SEGMENT_SORTS[1:])
        name, only, place = call.path["topic"], call.number("shard"), call.query.get("place")
        if place is not None and place not in PLACES:
            raise InvalidArgument("place", f"must be one of {', '.join(PLACES)}, not {place!r}")
        storage = self._parts.storage
        topic = storage.topic(name)
        statuses = [
            (seq, await storage.status(name, seq))
            for seq in (range(topic.shard_count) if only is None else [only])
        ]

        def choose() -> tuple[int, list[Segment]]:
            found = [
                segment
                for seq, status in statuses
                for segment in segments_of(name, seq, status)
                if place is None or place_of(segment) == place
            ]

            def key(each: Segment) -> tuple[int, int, int]:
                value = 0 if wish.sort == "shard" else getattr(each, wish.sort)
                return value, each.shard, each.segment_seq

            return len(found), wish.page(found, key)

        total, rows = await call_blocking(None, choose)
        return SegmentPage(total=total, rows=rows)

    async def rules(self, call: Call) -> RulePage:
        wish = Wish.of(call, RULE_SORTS)
        every = [shown_rule(rule) for rule in self._parts.rules.select(RuleFilter())]
        rules = wish.chosen(every, lambda each: f"{each.principal} {each.name}")

        def key(each: AccessRule) -> tuple[object, ...]:
            return getattr(each, wish.sort), each.principal, each.resource_type, each.name

        return RulePage(total=len(rules), rows=wish.page(rules, key))

    async def users(self, call: Call) -> UserPage:
        wish = Wish.of(call, USER_SORTS)
        names = wish.chosen(self._parts.users.names(), str)
        return UserPage(total=len(names), rows=wish.page(names, str))


def _sum(numbers: list[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None
