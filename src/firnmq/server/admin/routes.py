"""Every path of the HTTP listener with its method, its documents and its endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.server.admin.console.views import ConsoleViews
from firnmq.server.admin.console_routes import console_endpoints
from firnmq.server.admin.endpoint import Call, Endpoint, Parameter
from firnmq.server.admin.endpoints.cluster import ClusterAdmin
from firnmq.server.admin.endpoints.groups import GroupAdmin
from firnmq.server.admin.endpoints.lake import LakeAdmin
from firnmq.server.admin.endpoints.rules import RuleAdmin
from firnmq.server.admin.endpoints.tiering import TierAdmin
from firnmq.server.admin.endpoints.topics import TopicAdmin
from firnmq.server.admin.endpoints.users import UserAdmin
from firnmq.server.admin.http.token import Role
from firnmq.server.documents import (
    AccessRule,
    ClusterStatus,
    Deletion,
    GroupDeleted,
    GroupDescription,
    GroupSummary,
    LakeProgress,
    NewLeader,
    NewPassword,
    NewRecords,
    NewRules,
    NewTopic,
    NodeCordon,
    NodeStatus,
    NodeStays,
    OffsetMoved,
    OffsetReset,
    OptionChanges,
    Placement,
    Rebalanced,
    RebalanceRequest,
    RulesAdded,
    RuleSelection,
    ScrubRequest,
    Segment,
    ShardDeletion,
    ShardMoved,
    StoredRecord,
    TopicDeleted,
    TopicDescription,
    TopicOptions,
    TopicSummary,
    UploadRequest,
    UploadsRequested,
    User,
    UserChanged,
)
from firnmq.server.reading import reading_of
from firnmq.server.replication_documents import LossAccepted
from firnmq.tiering.archive.scrubber import ScrubReport
from firnmq.tiering.move.status import TierStatus


def endpoints(
    topics: TopicAdmin,
    groups: GroupAdmin,
    users: UserAdmin,
    rules: RuleAdmin,
    tier: TierAdmin,
    lake: LakeAdmin,
    status: Callable[[], Awaitable[NodeStatus]],
    cluster: ClusterAdmin,
    console: ConsoleViews,
) -> list[Endpoint]:
    return [
        *_cluster_endpoints(cluster),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/node",
            summary="The node: where it listens, what it holds, how busy it is.",
            gives=NodeStatus,
            answer=lambda _: status(),
        ),
        *_topic_endpoints(topics),
        *_record_endpoints(topics),
        *_group_endpoints(groups),
        *_user_endpoints(users),
        *_rule_endpoints(rules),
        *_tier_endpoints(tier),
        *_lake_endpoints(lake),
        *console_endpoints(console),
    ]


def _cluster_endpoints(cluster: ClusterAdmin) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/cluster",
            summary="The cluster's nodes, as this one knows them, and how many shards each leads.",
            gives=ClusterStatus,
            answer=lambda _: cluster.status(),
        ),
        Endpoint(
            method="POST",
            role=Role.OPERATE,
            path="/v1/cluster/rebalance",
            summary="Spread the leaders of shards evenly over nodes that are not cordoned, twenty "
            "moves per call. Nothing is copied.",
            takes=RebalanceRequest,
            gives=Rebalanced,
            answer=lambda call: cluster.rebalance(call.body),
        ),
        Endpoint(
            method="PUT",
            role=Role.OPERATE,
            path="/v1/cluster/nodes/{node}",
            summary="Cordon a node, so that it gets no shards any more, or end that.",
            takes=NodeCordon,
            gives=NodeStays,
            answer=lambda call: cluster.cordon(call.path["node"], call.body),
        ),
        Endpoint(
            method="PUT",
            role=Role.OPERATE,
            path="/v1/topics/{topic}/shards/{shard}/leader",
            summary="Have another node lead a shard. Nothing is copied.",
            takes=NewLeader,
            gives=ShardMoved,
            answer=lambda call: cluster.move(call.path["topic"], call.path["shard"], call.body),
        ),
        Endpoint(
            method="PUT",
            role=Role.OPERATE,
            path="/v1/topics/{topic}/shards/{shard}/loss",
            summary="Accept that a shard without enough replicas goes on without lost records.",
            gives=LossAccepted,
            answer=lambda call: cluster.accept_loss(call.path["topic"], call.path["shard"]),
        ),
    ]


def _topic_endpoints(topics: TopicAdmin) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics",
            summary="All topics.",
            gives=list[TopicSummary],
            answer=_async(lambda _: topics.all()),
        ),
        Endpoint(
            method="POST",
            role=Role.OPERATE,
            path="/v1/topics",
            summary="Create a topic.",
            takes=NewTopic,
            gives=TopicSummary,
            answer=lambda call: topics.create(call.body),
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}",
            summary="A topic's options, and the offsets and sizes of its shards.",
            gives=TopicDescription,
            query={
                "first": Parameter(text="The first shard to describe; 0 by default."),
                "count": Parameter(text="How many to describe: 1,000 by default, and at most."),
            },
            answer=lambda call: topics.describe(
                call.path["topic"], call.number("first"), call.number("count")
            ),
        ),
        Endpoint(
            method="DELETE",
            role=Role.OPERATE,
            path="/v1/topics/{topic}",
            summary="Delete a topic with all its records.",
            gives=TopicDeleted,
            answer=lambda call: topics.delete(call.path["topic"]),
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/config",
            summary="A topic's options.",
            gives=TopicOptions,
            answer=_async(lambda call: topics.options(call.path["topic"])),
        ),
        Endpoint(
            method="PATCH",
            role=Role.OPERATE,
            path="/v1/topics/{topic}/config",
            summary="Change some of a topic's options.",
            takes=OptionChanges,
            gives=TopicOptions,
            answer=lambda call: topics.change(call.path["topic"], call.body),
        ),
    ]


_READ_PARAMETERS = {
    "shard": Parameter(text="Only this shard; all of them otherwise."),
    "offset": Parameter(
        text="Where to begin: an offset, a negative number to count from the end of each shard, "
        "`start` (the default) or `end`.",
        kind="string",
    ),
    "key": Parameter(text="The newest record of this key.", kind="string"),
    "key_base64": Parameter(text="Likewise, for a key that is not text.", kind="string"),
    "all": Parameter(text="With a key: all its records, not the newest alone.", kind="boolean"),
    "tag": Parameter(text="Only records with this tag.", kind="string"),
    "since_ms": Parameter(text="Only records with this timestamp or a later one."),
    "until_ms": Parameter(text="Only records with an earlier timestamp."),
    "max": Parameter(text="No more records than this; all of them otherwise."),
    "follow": Parameter(text="Go on with records that are stored later.", kind="boolean"),
}


def _record_endpoints(topics: TopicAdmin) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/segments",
            summary="A topic's segments.",
            gives=list[Segment],
            query={"shard": Parameter(text="Only this shard.")},
            answer=lambda call: topics.segments(call.path["topic"], call.number("shard")),
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/records",
            summary="Records by offset, key, tag or time, as lines of JSON. An empty line shows "
            "that the node is still there; a last line with `error` tells why it stopped.",
            gives=StoredRecord,
            query=_READ_PARAMETERS,
            stream=lambda call, turn: topics.records(
                call.path["topic"], reading_of(call.query), turn
            ),
        ),
        Endpoint(
            method="POST",
            role=Role.OPERATE,
            path="/v1/topics/{topic}/records",
            summary="Store records; the answer comes once they are durable.",
            takes=NewRecords,
            gives=list[Placement],
            answer=lambda call: topics.write(call.path["topic"], call.body),
        ),
        Endpoint(
            method="POST",
            role=Role.OPERATE,
            path="/v1/topics/{topic}/deletions",
            summary="Delete records by key, by offset or before one; the answer comes once they "
            "are gone from every read, durably.",
            takes=Deletion,
            gives=list[ShardDeletion],
            answer=lambda call: topics.delete_records(call.path["topic"], call.body),
        ),
    ]


def _group_endpoints(groups: GroupAdmin) -> list[Endpoint]:
    # A group's name may hold slashes; what follows it is therefore matched from the end.
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/groups",
            summary="All consumer groups.",
            gives=list[GroupSummary],
            answer=lambda _: groups.all(),
        ),
        Endpoint(
            method="POST",
            role=Role.OPERATE,
            path="/v1/groups/{group}/offsets",
            summary="Move the offsets of a group that is not in use, or say what that would do.",
            takes=OffsetReset,
            gives=list[OffsetMoved],
            answer=lambda call: groups.reset(call.path["group"], call.body),
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/groups/{group}",
            summary="A group's members, its committed offsets and its lag.",
            gives=GroupDescription,
            answer=lambda call: groups.describe(call.path["group"]),
        ),
        Endpoint(
            method="DELETE",
            role=Role.OPERATE,
            path="/v1/groups/{group}",
            summary="Delete a group that is not in use, with its offsets.",
            gives=GroupDeleted,
            answer=lambda call: groups.delete(call.path["group"]),
        ),
    ]


def _user_endpoints(users: UserAdmin) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.ADMINISTER,
            path="/v1/users",
            summary="Users of the Kafka listener.",
            gives=list[User],
            answer=_async(lambda _: users.all()),
        ),
        Endpoint(
            method="PUT",
            role=Role.ADMINISTER,
            path="/v1/users/{user}",
            summary="Add a user, or give one another password.",
            takes=NewPassword,
            gives=UserChanged,
            answer=lambda call: users.put(call.path["user"], call.body.password),
        ),
        Endpoint(
            method="DELETE",
            role=Role.ADMINISTER,
            path="/v1/users/{user}",
            summary="Remove a user and close the user's connections.",
            gives=UserChanged,
            answer=lambda call: users.remove(call.path["user"]),
        ),
    ]


def _rule_endpoints(rules: RuleAdmin) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.ADMINISTER,
            path="/v1/rules",
            summary="Who may do what: every rule.",
            gives=list[AccessRule],
            answer=_async(lambda _: rules.all()),
        ),
        Endpoint(
            method="POST",
            role=Role.ADMINISTER,
            path="/v1/rules",
            summary="Add rules, all or none; one that is there already is no error.",
            takes=NewRules,
            gives=RulesAdded,
            answer=lambda call: rules.add(call.body),
        ),
        Endpoint(
            method="POST",
            role=Role.ADMINISTER,
            path="/v1/rules/removals",
            summary="Remove the rules that have every field that is given; answers with them.",
            takes=RuleSelection,
            gives=list[AccessRule],
            answer=lambda call: rules.remove(call.body),
        ),
    ]


def _tier_endpoints(tier: TierAdmin) -> list[Endpoint]:
    return [
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/tier",
            summary="The object store: what is there, what waits and why.",
            gives=TierStatus,
            answer=lambda _: tier.status(),
        ),
        Endpoint(
            method="POST",
            role=Role.OPERATE,
            path="/v1/tier/upload",
            summary="Upload what waits now, without delay.",
            takes=UploadRequest,
            gives=UploadsRequested,
            answer=lambda call: tier.upload(call.body),
        ),
        Endpoint(
            method="POST",
            role=Role.OPERATE,
            path="/v1/tier/scrub",
            summary="Compare the objects with the metadata; remove orphans unless only looking.",
            takes=ScrubRequest,
            gives=ScrubReport,
            answer=lambda call: tier.scrub(call.body),
        ),
    ]


def _lake_endpoints(lake: LakeAdmin) -> list[Endpoint]:
    return [
        Endpoint(
            method="POST",
            role=Role.READ,
            path="/v1/topics/{topic}/plan",
            summary="What of a topic there is to read, and from where.",
            takes=Wanted,
            gives=Plan,
            answer=lambda call: lake.plan(call.path["topic"], call.body),
        ),
        Endpoint(
            method="GET",
            role=Role.READ,
            path="/v1/topics/{topic}/lake",
            summary="How far a topic's records are in its table.",
            gives=LakeProgress,
            answer=lambda call: lake.progress(call.path["topic"]),
        ),
        Endpoint(
            method="PUT",
            role=Role.OPERATE,
            path="/v1/topics/{topic}/lake",
            summary="Note how far they are; an end never goes back.",
            takes=LakeProgress,
            gives=LakeProgress,
            answer=lambda call: lake.move(call.path["topic"], call.body),
        ),
    ]


def _async(
    answer: Callable[[Call], msgspec.Struct | list[Any]],
) -> Callable[[Call], Awaitable[msgspec.Struct | list[Any]]]:
    async def call(request: Call) -> msgspec.Struct | list[Any]:
        return answer(request)

    return call
