"""The paths that the console asks beyond the rest of the API."""

from __future__ import annotations

from typing import Final

from firnmq.server.admin.console import browsing, cost, tail
from firnmq.server.admin.console.cost import CostEstimate
from firnmq.server.admin.console.documents import (
    GroupPage,
    GroupShardPage,
    OptionInfo,
    Overview,
    RecordPage,
    RulePage,
    SegmentPage,
    SqlQuery,
    SqlReady,
    SqlRows,
    Tailed,
    TopicPage,
    TopicPlaces,
    UserPage,
)
from firnmq.server.admin.console.lake import LAKE_SORTS, LakePage, LakeTable
from firnmq.server.admin.console.leaders import LEADER_SORTS, STATES, LeaderPage
from firnmq.server.admin.console.listing import parameters
from firnmq.server.admin.console.lists import (
    GROUP_SHARD_SORTS,
    GROUP_SORTS,
    RULE_SORTS,
    SEGMENT_SORTS,
    TOPIC_SORTS,
    USER_SORTS,
)
from firnmq.server.admin.console.places import PLACES
from firnmq.server.admin.console.views import ConsoleViews
from firnmq.server.admin.endpoint import Endpoint, Parameter
from firnmq.server.admin.http.token import Role

_SHARD: Final = Parameter(text="Only this shard.")


def console_endpoints(console: ConsoleViews) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/overview/events",
            summary="The node's status and its last half hour, then every two seconds what is new.",
            gives=Overview,
            query={"since_ms": Parameter(text="Only samples after this moment.")},
            events=console.overview.events,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/pages/topics",
            summary="A page of topics with their sizes, rates and lags.",
            gives=TopicPage,
            query=parameters(TOPIC_SORTS),
            answer=console.lists.topics,
        ),
        Endpoint(
            method="GET",
            role=Role.ADMINISTER,
            path="/v1/pages/users",
            summary="A page of the users of the Kafka listener.",
            gives=UserPage,
            query=parameters(USER_SORTS),
            answer=console.lists.users,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/pages/leaders",
            summary="A page of the cluster's shards: who leads them, has them, is behind.",
            gives=LeaderPage,
            query={
                **parameters(LEADER_SORTS),
                "node": Parameter(text="Only shards that this node has."),
                "state": Parameter(text=f"One of {', '.join(STATES)}.", kind="string"),
            },
            answer=console.leaders.page,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/tier/cost",
            summary="What a month of history costs, on local disks alone and with an object store.",
            gives=CostEstimate,
            query=cost.PARAMETERS,
            answer=console.cost.estimate,
        ),
        Endpoint(
            method="GET",
            role=Role.ADMINISTER,
            path="/v1/pages/rules",
            summary="A page of the rules that say who may do what.",
            gives=RulePage,
            query=parameters(RULE_SORTS),
            answer=console.lists.rules,
        ),
        *_group_endpoints(console),
        *_topic_endpoints(console),
        *_lake_endpoints(console),
    ]


def _group_endpoints(console: ConsoleViews) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/pages/groups",
            summary="A page of consumer groups with their lags, and why they lag.",
            gives=GroupPage,
            query=parameters(GROUP_SORTS),
            answer=console.lists.groups,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/pages/group-shards",
            summary="A page of a group's shards, with the lag of each and why.",
            gives=GroupShardPage,
            query={
                "group": Parameter(text="The group.", kind="string"),
                **parameters(GROUP_SHARD_SORTS),
            },
            answer=console.lists.group_shards,
        ),
    ]


def _lake_endpoints(console: ConsoleViews) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/pages/lake",
            summary="A page of the topics that have records in a table, and how far it is behind.",
            gives=LakePage,
            query=parameters(LAKE_SORTS),
            answer=console.lake.page,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/table",
            summary="A topic's table as its catalog has it, with its newest snapshots. Needs the "
            "lake's packages on the node.",
            gives=LakeTable,
            answer=console.lake.table,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/sql",
            summary="Whether the node answers SQL.",
            gives=SqlReady,
            answer=lambda _: console.lake.ready(),
        ),
        Endpoint(
            method="POST",
            role=Role.ADMINISTER,
            path="/v1/sql",
            summary="Run a query of Spark SQL over topics, which reads and does nothing else. One "
            "query at a time, at most three minutes each.",
            takes=SqlQuery,
            gives=SqlRows,
            answer=lambda call: console.lake.sql(call.body),
        ),
    ]


def _topic_endpoints(console: ConsoleViews) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/places",
            summary="Where the records of a topic's shards are: on the node, in the object store, "
            "in the table; in a cluster also on which nodes.",
            gives=TopicPlaces,
            query={
                "start": Parameter(text="The first shard."),
                "max": Parameter(text="Shards of the page: 50, at most 200."),
            },
            answer=console.places.topic,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/options",
            summary="A topic's options with their defaults and what they are for.",
            gives=list[OptionInfo],
            answer=console.options.all,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/segment-page",
            summary="A page of a topic's segments.",
            gives=SegmentPage,
            query={
                **parameters(SEGMENT_SORTS),
                "shard": _SHARD,
                "place": Parameter(
                    text=f"Only those of one place: {', '.join(PLACES)}.", kind="string"
                ),
            },
            answer=console.lists.segments,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/browse",
            summary="A page of records, long values shortened; several shards are merged by time.",
            gives=RecordPage,
            query=browsing.PARAMETERS,
            answer=console.browser.page,
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/tail",
            summary="Records as they are stored, at most 1,000 a second; the rest is counted.",
            gives=Tailed,
            query=tail.PARAMETERS,
            events=console.tail.events,
        ),
    ]
