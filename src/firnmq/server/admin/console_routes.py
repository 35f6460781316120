"""The paths that the console asks beyond the rest of the API."""

from __future__ import annotations

from typing import Final

from firnmq.server.admin.console import browsing, tail
from firnmq.server.admin.console.documents import (
    GroupPage,
    OptionInfo,
    Overview,
    RecordPage,
    SegmentPage,
    Tailed,
    TopicPage,
    TopicPlaces,
    UserPage,
)
from firnmq.server.admin.console.listing import parameters
from firnmq.server.admin.console.lists import GROUP_SORTS, SEGMENT_SORTS, TOPIC_SORTS, USER_SORTS
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
            role=Role.READ,
            path="/v1/pages/groups",
            summary="A page of consumer groups with their lags, and why they lag.",
            gives=GroupPage,
            query=parameters(GROUP_SORTS),
            answer=console.lists.groups,
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
        *_topic_endpoints(console),
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
